"""An example of a ddpdoctor plugin: a gatherer, a check and a renderer."""
