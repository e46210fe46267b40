"""A checkpoint written as a training job writes it, in processes of its own, which need torch."""
