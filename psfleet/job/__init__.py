"""The job file and the training program. Imports neither TensorFlow nor Keras."""
