"""Callbacks that name the phases of a training for ``ddpdoctor run``; one module for each framework."""
