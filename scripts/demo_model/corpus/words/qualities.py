"""Adjectives, colors, feelings, weather and times. Not split: everybody needs all of them."""

from demo_model.corpus.words.listed import listed

COLORS = listed("red, blue, green, yellow, orange, purple, pink, brown, black, white, gray, golden, silver")
SIZES = listed("small, big, tiny, large, little, huge, tall, short")
LOOKS = listed(
    """
    old, new, round, shiny, soft, bright, pretty, plain, broken, dusty, heavy, light, wooden,
    smooth, striped, spotted, strange, beautiful, simple, lovely, fine, clean
    """
)
KIND_TRAITS = listed(
    """
    kind, brave, clever, quiet, cheerful, curious, patient, gentle, honest, careful, friendly,
    funny, shy, lively, polite, helpful, hopeful, thoughtful
    """
)
GOOD_FEELINGS = listed(
    """
    happy, glad, proud, excited, cheerful, pleased, relieved, thankful, calm, delighted
    """
)
BAD_FEELINGS = listed("sad, worried, afraid, angry, lonely, tired, nervous, upset, disappointed, sorry")
WEATHER = listed(
    """
    sunny, rainy, windy, cloudy, snowy, foggy, stormy, warm, cold, hot, cool, icy, misty, mild
    """
)
SEASONS = listed("spring, summer, autumn, winter")
DAYS = listed("Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday")
MONTHS = listed(
    """
    January, February, March, April, May, June, July, August, September, October, November,
    December
    """
)
DAY_TIMES = listed("morning, afternoon, evening")
NUMBERS = listed(
    """
    zero, one, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve, thirteen,
    fourteen, fifteen, sixteen, seventeen, eighteen, nineteen, twenty
    """
)
"""NUMBERS[n] is the word for n, 0 to 20."""
