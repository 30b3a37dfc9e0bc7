"""The words and units of the built-in corpus.

In a template, `{slot}` is filled from `txport.training.spoken.slots.SLOTS` and `{list}` from WORDS. All other words are
said as they are written. Words that are not said as written stand as `written|spoken`.
"""


def _listed(text: str) -> tuple[str, ...]:
    """The entries of a list that is separated by commas; lines may break anywhere."""
    return tuple(" ".join(entry.split()) for entry in text.split(","))


def _units(text: str) -> tuple[tuple[str, str, str], ...]:
    """Entries of `written|singular|plural`; the plural may be left out where it is the singular and an "s"."""
    entries = [entry.split("|") for entry in _listed(text)]
    return tuple((written, singular, *(plural or [f"{singular}s"])) for written, singular, *plural in entries)  # type: ignore[misc]


# Whether people put a space before a unit varies, so the corpus does both.
UNITS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "length": _units("km|kilometer, m|meter, cm|centimeter, mm|millimeter, mi|mile, ft|foot|feet, yd|yard"),
    "mass": _units("kg|kilogram, g|gram, mg|milligram, lb|pound, oz|ounce"),
    "volume": _units("l|liter, ml|milliliter, tbsp|tablespoon, tsp|teaspoon, gal|gallon"),
    "speed": _units(
        """km/h|kilometer per hour|kilometers per hour, mph|mile per hour|miles per hour,
        m/s|meter per second|meters per second"""
    ),
    "data": _units("KB|kilobyte, MB|megabyte, GB|gigabyte, TB|terabyte"),
    "electric": _units(
        """W|watt, kW|kilowatt, kWh|kilowatt hour, V|volt, Hz|hertz|hertz, MHz|megahertz|megahertz,
        GHz|gigahertz|gigahertz"""
    ),
    "duration": _units("hrs|hour, min|minute, sec|second, ms|millisecond"),
    "area": _units("m²|square meter, km²|square kilometer, sq ft|square foot|square feet, ha|hectare"),
}


WORDS: dict[str, tuple[str, ...]] = {
    "name": _listed(
        """Anna, Ben, Carla, David, Elena, Frank, Grace, Henry, Irene, Jack, Karen, Leo, Maria, Nathan, Olivia, Peter,
        Quentin, Rosa, Samuel, Teresa, Ursula, Victor, Wendy, Xavier, Yasmin, Zoe, Ahmed, Bianca, Chen, Diego, Emma,
        Fatima, George, Hannah, Ivan, Julia, Kenji, Laura, Miguel, Nadia, Oscar, Priya, Rachel, Stefan, Tom, Vera,
        Walter, Alice, Brian, Clara, Daniel, Erik, Felix, Gloria, Hugo, Ines, James, Katherine, Lucas, Martha, Noah,
        Paula, Robert, Sarah, Thomas, Valerie, William, Amir, Beatrice, Cecilia, Dmitri, Esther, Fiona, Greta,
        Harold, Isabel, Joseph, Kevin, Linda, Margaret, Nicholas, Patricia, Ruth, Simon, Tanya, Vincent, Yuki,
        Arthur, Barbara"""
    ),
    "surname": _listed(
        """Adams, Baker, Carter, Diaz, Edwards, Fischer, Garcia, Hughes, Ivanov, Jackson, Keller, Lopez, Miller,
        Nguyen, Olsen, Patel, Quinn, Rossi, Schmidt, Tanaka, Underwood, Vargas, Walker, Young, Zimmerman, Anderson,
        Brown, Clark, Davis, Evans, Foster, Green, Harris, Johnson, Kim, Lee, Moore, Nelson, Ortiz, Parker, Reed,
        Singh, Taylor, Wright, Bennett, Coleman, Dixon, Ellis, Fleming, Gordon, Hansen, Kowalski, Lambert, Morgan,
        Novak, Peterson"""
    ),
    "city": _listed(
        """Boston, Chicago, Denver, Houston, Seattle, Portland, Atlanta, Miami, Dallas, Phoenix, Detroit, London,
        Paris, Berlin, Madrid, Rome, Vienna, Prague, Warsaw, Lisbon, Dublin, Athens, Oslo, Stockholm, Helsinki,
        Cairo, Nairobi, Lagos, Mumbai, Delhi, Tokyo, Osaka, Seoul, Beijing, Shanghai, Sydney, Melbourne, Toronto,
        Montreal, Vancouver, Lima, Bogota, Santiago, Geneva, Zurich, Munich, Hamburg, Milan, Naples, Barcelona,
        Brussels, Amsterdam, Copenhagen, Budapest, New York, Los Angeles, San Francisco, Hong Kong, Mexico City,
        Cape Town"""
    ),
    "country": _listed(
        """Canada, Mexico, Brazil, Argentina, Chile, Peru, France, Spain, Portugal, Italy, Germany, Austria,
        Switzerland, Poland, Norway, Sweden, Finland, Denmark, Iceland, Greece, Turkey, Egypt, Kenya, Nigeria,
        Morocco, India, Japan, China, Korea, Vietnam, Thailand, Indonesia, Australia, New Zealand, Ireland,
        Scotland, Hungary, Romania"""
    ),
    "item": _listed(
        """lamp, table, chair, desk, sofa, bicycle, jacket, coat, camera, laptop, phone, keyboard, monitor, printer,
        guitar, piano, violin, drum, watch, ring, necklace, backpack, suitcase, umbrella, wallet, blanket, pillow,
        mattress, mirror, carpet, curtain, clock, radio, television, speaker, microphone, telescope, microscope,
        hammer, drill, saw, ladder, bucket, shovel, tent, stove, oven, kettle, toaster, blender, refrigerator,
        heater, fan, notebook, pencil, painting, statue, vase, candle, basket, helmet, scooter, skateboard, kayak,
        canoe, ticket, tablet, charger, cable, battery, engine, tire, trailer, tractor, sewing machine, coffee
        maker, washing machine, bread knife"""
    ),
    "food": _listed(
        """flour, sugar, butter, rice, pasta, cheese, milk, cream, yogurt, honey, salt, pepper, olive oil, vinegar,
        bread, tomatoes, potatoes, onions, carrots, apples, oranges, bananas, grapes, cherries, strawberries,
        lemons, spinach, lettuce, mushrooms, beans, lentils, chicken, beef, salmon, shrimp, tofu, almonds, walnuts,
        raisins, chocolate, coffee, tea, cinnamon, garlic, ginger, oats, corn, peas"""
    ),
    "place": _listed(
        """library, museum, airport, station, hospital, school, university, theater, stadium, restaurant, bakery, bank,
        post office, hotel, factory, warehouse, harbor, bridge, castle, church, temple, garden, park, market,
        pharmacy, gym, court, embassy, gallery, laboratory, office, farm, vineyard, lighthouse, tower, tunnel,
        campsite, zoo, aquarium, cinema, concert hall, town hall, shopping mall, parking garage, fire station, city
        center"""
    ),
    "job": _listed(
        """teacher, doctor, nurse, engineer, lawyer, pilot, farmer, baker, carpenter, plumber, electrician, journalist,
        photographer, architect, chemist, biologist, historian, librarian, mechanic, dentist, driver, painter,
        sculptor, musician, singer, dancer, actor, director, editor, translator, accountant, manager, clerk, guard,
        sailor, captain, mayor, senator, judge, detective, professor, student, programmer, gardener, waiter, chef,
        tailor, butcher"""
    ),
    "thing": _listed(
        """people, students, visitors, workers, passengers, voters, soldiers, tourists, patients, members, copies,
        books, letters, packages, trees, houses, cars, trucks, ships, planes, horses, sheep, birds, bees, stars,
        islands, villages, companies, jobs, tickets, seats, rooms, samples, files, messages, photographs, coins,
        bottles, boxes, bricks, windows, lamps, computers, robots, errors, words, pages, questions, points, votes"""
    ),
    "adjective": _listed(
        """old, new, small, large, red, blue, green, yellow, black, white, wooden, broken, cheap, expensive, heavy,
        light, modern, antique, beautiful, famous, empty, crowded, quiet, noisy, clean, dusty, bright, dark, warm,
        cold, strange, popular, rare, simple, narrow, wide, tall, short, private, public, northern, southern,
        eastern, western"""
    ),
    "company": _listed(
        """Acme, Globex, Initech, Northwind, Contoso, Redwood, Bluebird, Silverline, Evergreen, Horizon, Summit,
        Pioneer, Atlas, Orion, Phoenix Labs, Delta Foods, Granite Bank, Sunrise Energy, Harbor Freight, Maple
        Software"""
    ),
    "team": _listed(
        """Tigers, Lions, Bears, Eagles, Hawks, Wolves, Sharks, Bulls, Rangers, Rockets, Giants, Pirates, Knights,
        Comets, Wildcats, Panthers, Falcons, Ravens, Dragons, Stallions"""
    ),
    "topic": _listed(
        """history, music, painting, chemistry, physics, biology, geology, medicine, law, economics, politics,
        religion, philosophy, poetry, cooking, gardening, football, tennis, chess, sailing, astronomy, mathematics,
        geography, trade, weather, climate, energy, transport, housing, education, tourism, agriculture"""
    ),
    "street": _listed(
        """Baker St.|baker street, Main St.|main street, Oak Ave.|oak avenue, Park Ave.|park avenue, Elm Street|elm
        street, Sunset Blvd.|sunset boulevard, Hill Rd.|hill road, Lake Dr.|lake drive, Church Lane|church lane,
        Maple Ave.|maple avenue, Cedar Ct.|cedar court, King's Rd.|king's road, Mill Ln.|mill lane, Washington
        Blvd.|washington boulevard, River Road|river road, Station Street|station street, Market Sq.|market square,
        Ocean Dr.|ocean drive, Chestnut St.|chestnut street, Bridge St.|bridge street"""
    ),
    "title": _listed("Mr.|mister, Mrs.|missus, Dr.|doctor, Prof.|professor, Capt.|captain, Sen.|senator, Gen.|general"),
    "monarch": _listed("Henry, Charles, Louis, Edward, George, William, James, Philip, Frederick, Ferdinand, Napoleon"),
    "letters": tuple(
        f"{name}|{' '.join(name.lower())}"
        for name in (
            "USA FBI CIA UN EU BBC CNN IBM UK DVD CEO CTO GPS USB PDF FAQ DNA RNA MRI ATM GDP VIP URL SQL HTML GPU CPU "
            "API PHD NYC LED TV PC ID IRS MIT UCLA"
        ).split()
    ),
    "weekday": _listed("Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday"),
    "adverb": _listed(
        "only, about, almost, exactly, roughly, nearly, over, under, at least, at most, approx.|approximately, up to"
    ),
}
