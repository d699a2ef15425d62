"""The live view of ``run --live``, and the terminal that it shares with the job."""
