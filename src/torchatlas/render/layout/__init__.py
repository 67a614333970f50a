"""From a graph to the places of its boxes and lines: tree, outline, layered, columns, boxes, fit, scene."""
