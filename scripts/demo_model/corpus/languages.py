"""Short phrases in five languages: a noun phrase, a verb and a place, from small word lists of our own."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from demo_model.corpus import words
from demo_model.corpus.example import Split
from demo_model.corpus.phrasing import capital, chance
from demo_model.corpus.task_words import first_name
from demo_model.corpus.words.listed import listed


@dataclass(frozen=True)
class Language:
    """`subjects` come with their article; `verbs` fit one person; `whole` are phrases that stand alone."""

    subjects: tuple[str, ...]
    verbs: tuple[str, ...]
    objects: tuple[str, ...]
    places: tuple[str, ...]
    times: tuple[str, ...]
    whole: tuple[str, ...]


LANGUAGES = {
    "English": Language(
        listed("the woman, the man, the child, my sister, my brother, the dog, the cat, the teacher, our "
               "friend,"
               "the girl, the boy, the old man, the doctor, my mother, my father, the baker"),
        listed("sees, buys, has, finds, likes, takes, looks for, brings, sells, paints, wants"),
        listed("a book, the bread, a house, an apple, the milk, a red hat, the letter, some flowers, the "
               "key, a chair,"
               "the window, a cup, the bicycle, a small fish, two eggs"),
        listed("in the garden, at home, in the city, at school, on the street, in the kitchen, at the market,"
               "by the sea, in the forest, at the station, under the bridge"),
        listed("today, every day, in the morning, in the evening, now, on Sunday, tonight, always, tomorrow, "
               "at noon,"
               "in summer"),
        listed("good morning my friend, how are you today, thank you very much, where is the station,"
               "I would like some water, what time is it, the weather is beautiful, I do not understand,"
               "see you tomorrow, I am very tired, we are going home, what is your name, it is cold outside"),
    ),
    "French": Language(
        listed("la femme, l'homme, l'enfant, ma sœur, mon frère, le chien, le chat, le professeur, notre ami,"
               "la fille, le garçon, le vieil homme, le médecin, ma mère, mon père, le boulanger"),
        listed("voit, achète, a, trouve, aime, prend, cherche, apporte, vend, peint, veut"),
        listed("un livre, le pain, une maison, une pomme, le lait, un chapeau rouge, la lettre, des fleurs, "
               "la clé,"
               "une chaise, la fenêtre, une tasse, le vélo, un petit poisson, deux œufs"),
        listed("dans le jardin, à la maison, en ville, à l'école, dans la rue, dans la cuisine, au marché,"
               "au bord de la mer, dans la forêt, à la gare, sous le pont"),
        listed("aujourd'hui, tous les jours, le matin, le soir, maintenant, le dimanche, cette nuit, "
               "toujours, demain,"
               "à midi, en été"),
        listed("bonjour mon ami, comment allez-vous, merci beaucoup, où est la gare, je voudrais de l'eau,"
               "quelle heure est-il, il fait beau, je ne comprends pas, à demain, je suis très fatigué,"
               "nous rentrons à la maison, comment tu t'appelles, il fait froid dehors"),
    ),
    "German": Language(
        listed("die Frau, der Mann, das Kind, meine Schwester, mein Bruder, der Hund, die Katze, der Lehrer,"
               "unser Freund, das Mädchen, der Junge, der alte Mann, der Arzt, meine Mutter, mein Vater, der "
               "Bäcker"),
        listed("sieht, kauft, hat, findet, mag, nimmt, sucht, bringt, verkauft, malt, will"),
        listed("ein Buch, das Brot, ein Haus, einen Apfel, die Milch, einen roten Hut, den Brief, Blumen,"
               "den Schlüssel, einen Stuhl, das Fenster, eine Tasse, das Fahrrad, einen kleinen Fisch, zwei "
               "Eier"),
        listed("im Garten, zu Hause, in der Stadt, in der Schule, auf der Straße, in der Küche, auf dem "
               "Markt,"
               "am Meer, im Wald, am Bahnhof, unter der Brücke"),
        listed("heute, jeden Tag, am Morgen, am Abend, jetzt, am Sonntag, heute Nacht, immer, morgen, am "
               "Mittag,"
               "im Sommer"),
        listed("guten Morgen mein Freund, wie geht es dir, vielen Dank, wo ist der Bahnhof, ich möchte "
               "Wasser,"
               "wie spät ist es, das Wetter ist schön, ich verstehe nicht, bis morgen, ich bin sehr müde,"
               "wir gehen nach Hause, wie heißt du, es ist kalt draußen"),
    ),
    "Spanish": Language(
        listed("la mujer, el hombre, el niño, mi hermana, mi hermano, el perro, el gato, el profesor, "
               "nuestro amigo,"
               "la chica, el chico, el viejo, el médico, mi madre, mi padre, el panadero"),
        listed("ve, compra, tiene, encuentra, quiere, toma, busca, trae, vende, pinta, necesita"),
        listed("un libro, el pan, una casa, una manzana, la leche, un sombrero rojo, la carta, unas flores, "
               "la llave,"
               "una silla, la ventana, una taza, la bicicleta, un pez pequeño, dos huevos"),
        listed("en el jardín, en casa, en la ciudad, en la escuela, en la calle, en la cocina, en el mercado,"
               "junto al mar, en el bosque, en la estación, bajo el puente"),
        listed("hoy, todos los días, por la mañana, por la tarde, ahora, el domingo, esta noche, siempre, "
               "mañana,"
               "al mediodía, en verano"),
        listed("buenos días amigo, cómo estás hoy, muchas gracias, dónde está la estación, quisiera agua,"
               "qué hora es, hace buen tiempo, no entiendo nada, hasta mañana, estoy muy cansado, vamos a "
               "casa,"
               "cómo te llamas, hace frío afuera"),
    ),
    "Italian": Language(
        listed("la donna, l'uomo, il bambino, mia sorella, mio fratello, il cane, il gatto, il maestro,"
               "il nostro amico, la ragazza, il ragazzo, il vecchio, il medico, mia madre, mio padre, il "
               "fornaio"),
        listed("vede, compra, ha, trova, ama, prende, cerca, porta, vende, dipinge, vuole"),
        listed("un libro, il pane, una casa, una mela, il latte, un cappello rosso, la lettera, dei fiori,"
               "la chiave, una sedia, la finestra, una tazza, la bicicletta, un piccolo pesce, due uova"),
        listed("nel giardino, a casa, in città, a scuola, per strada, in cucina, al mercato, al mare, nel "
               "bosco,"
               "alla stazione, sotto il ponte"),
        listed("oggi, ogni giorno, la mattina, la sera, adesso, la domenica, stanotte, sempre, domani, a "
               "mezzogiorno,"
               "in estate"),
        listed("buongiorno amico mio, come stai oggi, grazie mille, dov'è la stazione, vorrei dell'acqua, "
               "che ore sono,"
               "fa bel tempo, non capisco niente, a domani, sono molto stanco, andiamo a casa, come ti "
               "chiami,"
               "fa freddo fuori"),
    ),
}  # fmt: skip


def phrase(rng: random.Random, split: Split, name: str) -> str:
    """A sentence put together, or one of the phrases that stand alone."""
    language = LANGUAGES[name]
    if chance(rng, 0.15):
        return capital(words.pick(rng, split, language.whole)) + rng.choice(("", "."))
    return capital(" ".join(built(rng, split, language))) + rng.choice((".", ".", ""))


def built(rng: random.Random, split: Split, language: Language) -> Sequence[str]:
    """Who does what, and mostly where or when. Verb and object are split as a pair."""
    who = first_name(rng, split) if chance(rng, 0.15) else rng.choice(language.subjects)
    pairs = [f"{verb} {thing}" for verb in language.verbs for thing in language.objects]
    parts = [who, words.pick(rng, split, pairs)]
    if chance(rng, 0.6):
        parts.append(rng.choice(language.places))
    return [*parts, rng.choice(language.times)] if chance(rng, 0.35) else parts
