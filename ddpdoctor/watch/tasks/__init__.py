"""One job watched by one `ddpdoctor run` per task of srun or mpirun: they meet in a folder, and one of them judges."""
