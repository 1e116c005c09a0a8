"""A loader: reads and preprocesses the training data of workers, by TensorFlow's tf.data service."""
