"""What `ddpdoctor run` does around the job that it launches: options, preparation, what is said beside the report."""
