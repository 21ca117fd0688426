class Checks {}
