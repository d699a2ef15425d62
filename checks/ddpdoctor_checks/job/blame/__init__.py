"""Who failed first and who only followed: no checks, but what checks of jobs are made of."""
