"""The boundary to AWS: one file a service, the only boto3 imports of the admin side."""
