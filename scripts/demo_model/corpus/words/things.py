"""Things, animals and food: singular nouns that take "a" or "an", sorted into categories."""

from demo_model.corpus.words.listed import listed

TOYS = listed(
    """
    ball, kite, doll, puzzle, yo-yo, drum, whistle, toy train, toy car, toy boat, teddy bear,
    spinning top, marble, puppet, balloon, jump rope, robot, rocking horse, music box, card game
    """
)
TOOLS = listed(
    """
    hammer, saw, ladder, rope, shovel, rake, bucket, paintbrush, screwdriver, wrench, drill,
    needle, broom, wheelbarrow, flashlight, lantern, compass, key, lock, magnet
    """
)
CLOTHES = listed(
    """
    hat, scarf, coat, glove, boot, shirt, sweater, jacket, belt, cap, dress, skirt, sock, shoe,
    raincoat, apron, vest, ribbon, button, mitten
    """
)
HOUSE = listed(
    """
    lamp, chair, table, clock, mirror, pillow, blanket, carpet, vase, candle, cup, plate, bowl,
    spoon, fork, teapot, kettle, basket, box, bottle, jar, shelf, drawer, umbrella, picture frame
    """
)
MUSIC = listed(
    """
    flute, violin, guitar, trumpet, piano, harp, bell, cello, horn, banjo, accordion, harmonica
    """
)
VEHICLES = listed(
    """
    bike, car, bus, train, boat, truck, scooter, tractor, sled, canoe, van, tram, ship, wagon,
    raft
    """
)
PAPERS = listed(
    """
    book, letter, map, notebook, pencil, pen, stamp, postcard, photo, diary, ticket, poster,
    newspaper
    """
)
OUTDOORS = listed(
    """
    shell, feather, stone, leaf, acorn, pine cone, flower, stick, nest, egg, coin, ring, medal,
    flag
    """
)

FRUIT = listed(
    """
    apple, pear, banana, orange, lemon, plum, peach, cherry, grape, melon, mango, kiwi, fig,
    apricot, strawberry, blueberry, raspberry, pineapple, lime, coconut
    """
)
VEGETABLES = listed(
    """
    carrot, potato, tomato, onion, cabbage, pumpkin, cucumber, pea, bean, radish, leek, turnip,
    mushroom, pepper, beet, eggplant, zucchini, artichoke
    """
)
DISHES = listed(
    """
    cake, pie, sandwich, pancake, cookie, pizza, salad, omelet, muffin, waffle, burger, bagel,
    pretzel, croissant, roll, tart, soup, stew, noodle dish, dumpling
    """
)

PETS = listed(
    """
    cat, dog, rabbit, hamster, parrot, turtle, goldfish, guinea pig, mouse, canary, kitten, puppy
    """
)
FARM_ANIMALS = listed(
    """
    cow, horse, pig, sheep, goat, chicken, duck, goose, donkey, rooster, lamb, pony, turkey, calf
    """
)
WILD_ANIMALS = listed(
    """
    fox, owl, squirrel, hedgehog, deer, bear, wolf, badger, otter, beaver, frog, crow, robin,
    sparrow, swan, heron, seal, whale, dolphin, penguin, lion, tiger, elephant, giraffe, zebra,
    monkey, camel, kangaroo, panda, eagle, hawk, stork, bat, mole, toad, lizard, snail, bee,
    butterfly, ant, octopus, crab, seagull, raccoon
    """
)

THINGS = TOYS + TOOLS + CLOTHES + HOUSE + MUSIC + VEHICLES + PAPERS + OUTDOORS
ANIMALS = PETS + FARM_ANIMALS + WILD_ANIMALS
FOODS = FRUIT + VEGETABLES + DISHES

FLOWERS = listed(
    """
    rose, tulip, daisy, lily, violet, sunflower, poppy, daffodil, orchid, lavender, snowdrop, iris
    """
)
TREES = listed("oak, pine, birch, maple, willow, ash, elm, beech, cedar, spruce, chestnut, linden")
JOBS = listed(
    """
    teacher, doctor, nurse, farmer, baker, painter, singer, pilot, sailor, fisher, cook, gardener,
    carpenter, tailor, plumber, driver, dentist, engineer, librarian, actor, dancer, writer,
    shoemaker, postman, firefighter, police officer, electrician, waiter, photographer, scientist,
    builder, judge, lawyer, musician, florist, barber, mechanic, beekeeper, clockmaker, potter
    """
)
