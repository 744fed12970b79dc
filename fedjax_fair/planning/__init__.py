"""Estimates of time and memory on other hardware, by ahead-of-time compilation."""
