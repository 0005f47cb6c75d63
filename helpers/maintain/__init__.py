"""Commands for those who change the course.

refresh   run every notebook in a fresh kernel and store what it gives
export    write the notebooks as web pages
publish   say where the course lives, so that Colab can fetch it
ladder    draw the picture of the course that the README shows
pretrain  train the model that comes with the course
parts     measure what each part of the transformer buys
bench     measure what the course claims about training
"""
