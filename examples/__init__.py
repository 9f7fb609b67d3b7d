"""The scripts; installed as ``eqr_torchrl.lab.scripts``, which the commands call."""
