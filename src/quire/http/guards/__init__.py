"""What stands between the network and the routes: who may come in, how many, with how much."""
