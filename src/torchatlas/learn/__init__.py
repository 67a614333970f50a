"""Lessons on graphs and on training: Markdown files -> steps that run on the installed torch, and that a terminal asks.

    lesson.py          a Markdown file -> Lesson: title, minutes, steps
    catalogue.py       the lessons of lessons/graph and lessons/doctor, in order, by name
    runner.py          Lesson -> what each step printed, and whether that is what the lesson says
    answers.py         an answer and what was printed -> right, wrong, or for the learner to compare
    lesson_session.py  one lesson at a terminal: shows, asks, runs, compares
    terminal_text.py   what a terminal shows of a lesson: text, code, what was printed, the list of lessons
    lesson_page.py     Lesson -> a page of the viewer, and the link that opens it at the right moment
    progress.py        which lessons were done: a small file in the user's state folder

A lesson is one Markdown file. A teacher writes it in any editor, it reads well where it lies, and nothing has to be
told of it: the folder is listed. (The other choice was a Python file with cells. Its texts would be comments, and what
a block must print would need a syntax of its own; Markdown has fences for both.)

    # The title
    minutes: 3

    A few lines of text.

    > What is printed?

    ```python
    print(1 + 1)
    ```

    ```text
    2
    ```

- A step is text, then a block of code, then a block with what it prints. Blocks share one namespace, as in a notebook.
- A quotation (`>`) before a block is the question. A block without one is run when the learner presses Enter; one
  that prints nothing is run at once.
- What is printed must be what the lesson says, or a test fails; `...` stands for anything, as in doctests. An exception
  is printed as its last line (`RuntimeError: ...`), and a warning likewise.
- Text after the last block is what to take along.
- ```` ```python page ```` is not shown. It is run for the page: it sets `graph`, and may set `backward` (a recording of
  backward) and `moment` (the name of the node to open the page at).
- A lesson on a fault has `finds: KEY` in its head and two blocks, ```` ```python broken ```` and
  ```` ```python mended ````. Both are whole programs; the doctor must find KEY in the first and nothing in the second.

`torchatlas learn my_lesson.md` runs a lesson that is still being written.
"""
