"""The Open Inference Protocol over REST and gRPC, batches of queries, and the answers of an ensemble; no TensorFlow."""
