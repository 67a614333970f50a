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
    usual_width: float = 116.0
    two_line_height: float = 36.0  # with a title and a text below it
    highest_closed: float = 48.0  # closed boxes are lower than this, open ones are not
    spanning_height: float = 50.0  # boxes from this height on may span ranks
    text_margins: float = 22.0  # left and right of a text, together
    plus: float = 14.0  # the mark of a closed group
    badge_margins: float = 10.0  # left and right of the number that says how often a box repeats, together
    before_badge: float = 6.0  # in a closed box
    before_heading_badge: float = 8.0
    beside_line_ends: float = 24.0  # left and right of the ends of the lines on a box, together
    box_corner: float = 5.0
    op_border: float = 1.0
    closed_group_border: float = 1.4
    path_border: float = 2.4  # of boxes on a highlighted path
    stack: float = 6.0  # how far the boxes behind a repeat look out
    # Open boxes
    heading: float = 22.0
    group_corner: float = 7.0
    padding: float = 12.0
    below_heading: float = 8.0  # where lines lead to the right
    above_first_box: float = 10.0  # below the heading, where no line enters
    return_lane: float = 18.0  # for the dashed line of a repeat, along its right side
    below_return: float = 6.0  # more padding at the bottom of a repeat
    return_foot: float = 5.0  # from the bottom of a repeat to where the dashed line begins
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
    box_to_track: float = 8.0  # from a box, a column or a border to the horizontal piece next to it
    track_to_box: float = 14.0  # and from the last one to the next boxes
    track_to_border: float = 10.0  # and at least to where lines leave a group
    port_gap: float = 14.0  # between the ends of lines on one box, where there is room
    line_ends_apart: float = 7.0  # and at least
    corner_to_line: float = 12.0  # from the side of a box to the first end of a line, where there is room
    line_end: float = 7.0  # what the end of a line takes of the width of a box
    jog: float = 5.0  # a line that would turn aside by less is made straight
    straight: float = 0.5  # points nearer than this are joined by a straight line
    one_place: float = 0.3  # points nearer than this are drawn as one
    beside_box: float = 3.0  # from a line that passes a box to the box
    beside_line: float = 4.0  # from a line that runs along another to that one
    lines_look_one: float = 6.0  # vertical pieces nearer than this look like one line
    track_ends_apart: float = 5.0  # between the ends of horizontal pieces on one track
    label_gap: float = 5.0
    label_height: float = 12.0
    label_baseline: float = 10.0  # from the top of a text to its base line
    label_to_box: float = 1.0  # and to another text, a line beside it, and one it stands above or below
    label_to_label: float = 3.0
    label_to_upright_line: float = 3.5
    label_to_level_line: float = 1.5
    label_shift: float = 2.0  # from the ends of an upright line, and from a level one
    label_ends: float = 14.0  # before and after a text above a line
    line_width: float = 1.3
    many_line_width: float = 2.2  # of a line that stands for several tensors
    path_line_width: float = 2.4  # of lines on a highlighted path
    arrow: float = 6.5
    line_corner: float = 6.0
    dot: float = 2.6
    # The legend
    swatch: float = 15.0
    ramp: float = 120.0


STYLE = Style()
