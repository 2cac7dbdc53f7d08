"""The provider `rootfs`: a sandbox is an image's file system in namespaces of this machine, with no container engine."""
