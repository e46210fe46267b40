"""torch's own tests of torch.distributed.checkpoint, over this package's reader and writer. Its sources are not here:

python -m tests.distributed.torch_own FOLDER_OF_TORCH'S_SOURCES
"""
