"""What several of SAIL's claims say about data, networks and measures."""

DATA = (
    "inputs of the target and of both sources for the weights; goals are set on other seeds; "
    "on spirals losses on validation points, accuracy and final losses on test points; in pictures "
    "all on test examples"
)
SETTING = (
    "two spirals, sources on 40 % of the points by three readings, from a shared start or own "
    "ones; SAIL's start is the average with Theorem 3's weights, by MMD of inputs"
)
MODELS = (
    "GPTs of width 32 on characters, from a shared start or own ones, retrained with Adam at a "
    "constant rate, the best of three for each start"
)
LARGER = (
    "GPTs of width 32 and depth 2, trained on Shakespeare and on WikiText-2, grown to width 48 and "
    "depth 3, or 64 and 4, by maps that keep the function, averaged, and trained for 400 steps on "
    "a mixture of three parts Shakespeare and one part WikiText-2"
)
PICTURED = (
    "ResNets of width 8 with four blocks, trained on Tiny ImageNet and on rendered scripts, grown "
    "to eight blocks by maps that keep the function, averaged, and trained for 160 steps on each "
    "of the eight sets of vision8, whose mean counts; all at one rate, the largest of three tried"
)
HALVES = (
    "ResNets of width 8 with four blocks, each trained on half of 180 classes of Tiny ImageNet, "
    "grown to width 12 and eight blocks, and trained for 160 steps on CIFAR-10, CIFAR-100 and the "
    "other 20 classes, whose mean counts, with rates tuned on CIFAR-10 for each start and size; "
    "with own starts on CIFAR-10 alone; weights are Theorem 3's even where the halves' pixels "
    "cannot be told apart"
)
REACHED = (
    "Steps to a loss are those at which the smoothed curve is first as low; goals are scratch's "
    "loss after three and six tenths of the budget on tuning seeds, both as "
    "mergebook.sail.costs defines them. A run that never reaches a goal counts as if at its "
    "end, and one that is there at the first reading as if at that reading; where more than a "
    "fifth of a side's runs are so, the speed-up is a bound, and undecided where it is one both "
    "ways. Pictures have the easy goal alone, taken from earlier tuning, not re-run: scratch's "
    "least reading in half of the budget"
)
FLAT = (
    "the loss at the γ at which the other seeds' mean is highest, less that at which it is lowest, "
    "is not above 0 by its 95 % interval over seeds"
)
