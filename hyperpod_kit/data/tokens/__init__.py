"""Windows of tokens, packed or read as Megatron writes them: begin with `packing`."""
