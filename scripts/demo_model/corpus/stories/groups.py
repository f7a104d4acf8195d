"""Groups of words that plots draw from: things for a purpose, animals for a part."""

from demo_model.corpus.words.listed import listed

THINGS = {
    "carried": listed(
        """
        kite, ball, doll, hat, scarf, glove, cap, umbrella, book, notebook, key, ring, coin, whistle,
        teddy bear, puppet, flute, basket, photo, medal, compass, music box, mitten, watch, backpack,
        pencil case, purse, bracelet, marble, necklace, toy car, lunch box, feather, flashlight, wallet,
        toy boat, sketchbook, lantern, drum, locket, yo-yo
        """
    ),
    "gifts": listed(
        """
        picture frame, kite, puppet, scarf, basket, music box, toy boat, toy train, doll, vase, candle, bowl,
        box, lamp, bird house, notebook, bookmark, necklace, bracelet, pillow, blanket, drum, mug, calendar,
        wooden horse, paper bird, clay pot, hat, flower pot, book
        """
    ),
    "mendable": listed(
        """
        kite, toy boat, toy train, doll, vase, clock, music box, lamp, chair, bowl, cup, teapot, umbrella,
        puppet, rocking horse, picture frame, mirror, robot, basket, sled, drum, scooter, jewel box, flute,
        toy car, stool, birdcage, lantern, globe, toy plane
        """
    ),
    "fragile": listed(
        """
        vase, bowl, mirror, cup, plate, teapot, lamp, clock, picture frame, jar, jug, glass, mug, statue,
        candle holder, clay pot, snow globe, bottle, sugar bowl, china doll
        """
    ),
}
WILD = {
    "rescued": listed(
        """
    fox, squirrel, hedgehog, fawn, badger, otter, beaver, owl, crow, hare, raccoon, duck, mole, hawk,
    stork
    """
    ),
    "visitors": listed("fox, hedgehog, raccoon, squirrel, mouse, badger, weasel, hare, crow, rat, owl"),
    "fable": listed(
        """
        fox, hedgehog, badger, otter, beaver, hare, squirrel, wolf, bear, raccoon, mole, deer, mouse, toad,
        lizard, rabbit, goat, donkey, turtle, lynx
        """
    ),
    "fast": listed("hare, fox, deer, wolf, horse, rabbit, cheetah, dog, goat, cat, antelope, zebra"),
    "slow": listed(
        "turtle, snail, hedgehog, mole, toad, worm, badger, duck, crab, beetle, sloth, caterpillar"
    ),
}
SNACKS = listed(
    """
    cookie, muffin, pancake, waffle, sandwich, bagel, pretzel, croissant, pie, apple, pear, banana, orange,
    peach, melon, mango, pizza, cake, plum, apricot, bun, pastry, dumpling, tart, honey cake, sausage,
    cinnamon roll, doughnut, cupcake, fig
    """
)
PETS = listed(
    """
    kitten, puppy, rabbit, hamster, guinea pig, cat, dog, chick, duckling, lamb, mouse, ferret, parrot,
    goat
    """
)
PET_NAMES = listed(
    """
    Pip, Coco, Luna, Biscuit, Pepper, Ginger, Fluffy, Snowy, Spot, Teddy, Cookie, Misty, Patch, Button, Honey,
    Shadow, Lucky, Daisy, Peanut, Muffin, Socks, Nibbles, Bramble, Pebble, Cloud, Mango, Olive, Sunny, Rusty,
    Whiskers
    """
)
PET_COLORS = listed("white, black, gray, brown, golden, orange")
SKILLS = listed(
    """
    swim, ride a bike, skate, juggle, whistle, dance, bake bread, play the flute, play the guitar, paint
    horses, tie knots, climb a tree, row a boat, knit, sing, ride a horse, fly a kite, play chess, ski,
    play the piano, draw faces, jump rope, walk on stilts, make pancakes, throw a ball, play the drum,
    carve wood, read music, sew, do a handstand
    """
)
FEARS = listed(
    """
    the dark, thunder, deep water, big dogs, high places, spiders, loud noises, the old cellar, horses,
    heights, the dark forest, bees, speaking in front of the class, the tall slide, snakes, masks, the
    attic, geese, the long tunnel, the cold lake
    """
)
CONTESTS = listed(
    """
    drawing contest, baking contest, kite contest, singing contest, cooking contest, boat race, spelling
    contest, dance contest, painting contest, bike race, sack race, cake contest, poetry contest,
    sandcastle contest, swimming contest, garden contest, puzzle contest, pumpkin contest, story contest,
    running race
    """
)
BUILDS = listed(
    """
    tree house, little hut, small cabin, fort, playhouse, garden hut, wooden tower, castle of wood, stone
    house, den, shelter, clubhouse
    """
)
INSTRUMENTS = listed("flute, violin, guitar, trumpet, harp, cello, horn, banjo, accordion, harmonica")
CHORES = listed(
    """
    carry all the boxes up the stairs, paint the long fence, pick all the apples, bring in the hay,
    clean the whole barn, move all the books, wash all the windows, rake all the leaves,
    chop the wood for winter, dig up the potatoes, paint the whole house, clear the snow from the path,
    pull out all the weeds, sweep the whole square, water the whole field
    """
)
WOMEN = listed("mother, grandmother, aunt, big sister, stepmother")
MEN = listed("father, grandfather, uncle, big brother, stepfather")
NATURE = listed(
    """
    forest, garden, meadow, park, lake, river, hill, orchard, farm, island, valley, beach, pond, vineyard,
    old mill, field, mountain, seaside, woods, marsh
    """
)
ON_SPOTS = frozenset({"bridge", "farm", "hill", "playground", "campsite", "ice rink", "island", "mountain"})
AT_SPOTS = listed(
    """
    beach, market, library, school, station, harbor, bakery, lake, river, theater, zoo, bus stop, old
    well, fountain, swimming pool, bookshop, toy shop, post office, hospital, windmill, lighthouse, pond,
    mill, old mill, seaside, fairground
    """
)
"""Every other spot is a place that one is in."""
