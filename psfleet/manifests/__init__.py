"""Renders a job as files for the tools of a platform; needs neither Docker nor a cluster."""
