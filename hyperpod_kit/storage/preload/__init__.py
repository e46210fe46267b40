"""Files brought to where they are read fast, before the job that reads them holds GPUs."""
