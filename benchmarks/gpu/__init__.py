"""The validation on a real GPU: nine programs, each of one command of less than ten minutes."""
