"""The provider `local`: confined machine places on this machine, without a container engine."""
