"""What the notebooks build, in order; each module imports only from those above it.

expect         the checks that bad input meets
loop_mean      01, the mean of the past as two loops
tril_matmul    02, the same mean as a matrix product
softmax_mask   03, the same mean from scores, a mask and softmax
positional     04, vectors for tokens and for their places
qkv_head       05, a head: queries, keys and values
transformer    06, heads, blocks and the whole model
fast_heads     07, the same heads in one product, and a cache for writing
probe          look: who looks at whom, measured on any layer
cost           look: what a computation costs
plots          look: pictures that also say what they show
recall         look: the code of something built earlier
text           text to ids and back, and batches of it
stories        the grammar behind the bundled stories, and the best loss there can be
checkpoint     a trained model in a file
sample         writing text with a trained model
processes      several processes that train one model together
pace           whether a training step is compiled, and in which numbers
train          losses and the training loop
explorers      look: sliders, and pictures that follow them
checks         learn: markers for the exercises
doctor         start: is this machine ready?
maintain       commands for those who change the course
"""
