"""LeNet-5 on MNIST, trained until it reaches an accuracy: the data, the model and the clock of all contenders."""
