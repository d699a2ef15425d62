"""What is true of Python, torch and ddpdoctor itself, once for all that ask.

The modules import nothing but the standard library and run under Python 3.8: `ddpdoctor run` puts them into the
processes of a job too (`ddpdoctor.watch.inject`).
"""
