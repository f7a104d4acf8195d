"""Cities and countries that exist, and the kinds of places where things happen."""

from demo_model.corpus.words.listed import listed

CITIES = listed(
    """
    Paris, London, Berlin, Madrid, Rome, Vienna, Lisbon, Oslo, Stockholm, Helsinki, Copenhagen,
    Dublin, Amsterdam, Brussels, Prague, Warsaw, Budapest, Athens, Zurich, Geneva, Hamburg,
    Munich, Cologne, Milan, Venice, Naples, Turin, Florence, Barcelona, Seville, Valencia, Porto,
    Lyon, Marseille, Nice, Bordeaux, Toulouse, Glasgow, Edinburgh, Bristol, Leeds, Liverpool,
    Oxford, Cambridge, York, Cardiff, Belfast, Boston, Chicago, Denver, Seattle, Portland, Austin,
    Dallas, Houston, Miami, Atlanta, Phoenix, Toronto, Montreal, Ottawa, Vancouver, Calgary, Lima,
    Quito, Bogota, Santiago, Havana, Tokyo, Osaka, Kyoto, Seoul, Busan, Beijing, Shanghai, Hanoi,
    Bangkok, Manila, Jakarta, Delhi, Mumbai, Chennai, Kolkata, Karachi, Dhaka, Kathmandu, Tehran,
    Baghdad, Cairo, Tunis, Algiers, Rabat, Dakar, Accra, Lagos, Nairobi, Kampala, Lusaka, Harare,
    Sydney, Melbourne, Perth, Brisbane, Adelaide, Auckland, Wellington, Reykjavik, Riga, Vilnius,
    Tallinn, Sofia, Bucharest, Belgrade, Zagreb, Ljubljana, Istanbul, Ankara, Izmir
    """
)
COUNTRIES = listed(
    """
    France, Germany, Spain, Italy, Portugal, Norway, Sweden, Finland, Denmark, Ireland, Poland,
    Austria, Hungary, Greece, Switzerland, Belgium, Canada, Mexico, Peru, Chile, Brazil,
    Argentina, Cuba, Japan, China, India, Vietnam, Thailand, Egypt, Morocco, Kenya, Ghana,
    Nigeria, Zambia, Australia, New Zealand, Iceland, Latvia, Estonia, Turkey
    """
)
SPOTS = listed(
    """
    park, garden, forest, beach, market, library, school, museum, station, harbor, bakery, bridge,
    farm, lake, river, meadow, hill, village square, playground, orchard, castle, lighthouse,
    mill, theater, zoo, bus stop, kitchen, attic, cellar, barn, greenhouse, workshop, pond, cave,
    tower, old well, fountain, campsite, fairground, ice rink, swimming pool, bookshop, toy shop,
    post office, hospital, stable, windmill, vineyard, island, valley
    """
)
"""Each goes behind "the"."""
