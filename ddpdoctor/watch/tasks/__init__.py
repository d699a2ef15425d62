"""One job watched by one `ddpdoctor run` per task of srun or mpirun: they share a folder, and one of them reports."""
