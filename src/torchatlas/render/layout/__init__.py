"""From a graph to the places of its boxes and lines.

    Graph -- tree.py --> outline.py (items, folded by folding.py), wiring.py (their lines), box_words.py (what they say)
          -- open_groups.py: which groups are open --> boxes.py: each group is one layered problem
          -- page_columns.py cuts it, layered.py and routing.py place it --> scene.py: all boxes and lines of a page
          -- line_labels.py: what is written beside the lines, where there is room

style.py has all sizes and distances.
"""
