"""The geometry of pictures, in the units of the layout: a picture is scaled as a whole when it is fitted to a page."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Style:
    """Sizes and distances. Text of `small_text` units is the smallest there is."""

    # Text
    title_text: float = 12.5
    small_text: float = 11.0
    widest_title: float = 260.0
    widest_text: float = 190.0  # what stands below a title makes a box no wider than this and its margins
    shortest_name: float = 40.0  # what a name keeps that gives way to figures
    # Closed boxes
    least_width: float = 64.0
    least_height: float = 24.0
    usual_height: float = 34.0
    highest_closed: float = 48.0  # closed boxes are lower than this, open ones are not
    spanning_height: float = 50.0  # boxes from this height on may span ranks
    text_margins: float = 22.0  # left and right of a text, together
    plus: float = 14.0  # the mark of a closed group
    box_corner: float = 5.0
    stack: float = 6.0  # how far the boxes behind a repeat look out
    # Open boxes
    heading: float = 22.0
    group_corner: float = 7.0
    padding: float = 12.0
    below_heading: float = 8.0  # where lines lead to the right
    beside_heading: float = 32.0  # before the title of an open group, between it and its heading, and after that
    # Distances between boxes
    box_gap: float = 18.0  # in a rank
    rank_gap: float = 24.0
    gutter: float = 24.0  # between columns, beside the lines there
    above_columns: float = 6.0  # from the border to the first line above columns
    below_columns: float = 4.0  # from a column to the first line below it
    # Lines
    line_gap: float = 11.0  # from a line to its neighbour in a rank
    lane: float = 9.0  # between two lines that run beside each other between columns
    track: float = 8.0  # between two horizontal pieces of different nets
    box_to_track: float = 8.0  # from a box to the first horizontal piece below it
    track_to_box: float = 14.0  # and from the last one to the next boxes
    track_to_border: float = 10.0  # and at least to where lines leave a group
    port_gap: float = 14.0  # between the ends of lines on one box, where there is room
    line_ends_apart: float = 7.0  # and at least
    line_end: float = 7.0  # what the end of a line takes of the width of a box
    jog: float = 5.0  # a line that would turn aside by less is made straight
    lines_look_one: float = 6.0  # vertical pieces nearer than this look like one line
    track_ends_apart: float = 5.0  # between the ends of horizontal pieces on one track
    label_gap: float = 5.0
    label_ends: float = 14.0  # before and after a text above a line
    line_width: float = 1.3
    arrow: float = 6.5
    line_corner: float = 6.0
    dot: float = 2.6
    # The legend
    swatch: float = 15.0
    ramp: float = 120.0


STYLE = Style()
