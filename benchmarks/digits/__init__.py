"""LeNet-5 on MNIST, trained until it reaches an accuracy: the data and the model of the contenders."""
