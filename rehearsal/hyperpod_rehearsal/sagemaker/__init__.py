"""The cluster part of SageMaker's API over HTTP, in front of whatever plays the control plane."""
