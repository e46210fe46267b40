"""What HyperPod does with clusters over time: begin with `control_plane` and `operations`."""
