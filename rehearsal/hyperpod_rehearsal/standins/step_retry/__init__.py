"""HyperPod's retry of a step: its SPANK plugin, what srun does then, and the cluster agent on the controller.

Built from public logs and documents (fidelity.py says what is guessed). Each file runs alone on a node.
"""
