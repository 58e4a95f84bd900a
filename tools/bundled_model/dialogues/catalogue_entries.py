"""The entries of the catalogue, as data. catalogue.py turns them into tools and requests."""

from tools.bundled_model.dialogues import values
from tools.bundled_model.dialogues.catalogue import Entry, Field, ValueMaker
from tools.bundled_model.dialogues.words import Source


def _one_of(*choices: str) -> ValueMaker:
    return lambda source: source.pick(choices)


def _number(low: int, high: int) -> ValueMaker:
    return lambda source: source.between(low, high)


def _sum(source: Source) -> str:
    signs = (" + ", " - ", " * ", " / ", "+", "*")
    text = str(source.between(1, 999))
    for _ in range(source.between(1, 2)):
        text += source.pick(signs) + str(source.between(1, 999))
    return text


_UNITS = ("celsius", "fahrenheit")
_ROOMS = ("kitchen", "bedroom", "bathroom", "hall", "garage", "cellar", "office")
_LANGUAGES = ("German", "French", "Spanish", "Italian", "Dutch", "Polish", "Greek", "Japanese", "Chinese", "English")
_CITY = Field(
    "city location place",
    Source.place,
    "The city|City|Name of the city|The city and state, e.g. San Francisco, CA|Where, such as Berlin|City name",
)
_FLAGS = Field("flags", _one_of("i", "m"), "Flags of the regular expression", "string", ("", "i", "m"), False)
_PATTERN = Field("pattern regex expression", values.pattern, "The regular expression")

REGEX_SCAN = Entry(
    "regex_scan",
    (
        "Scan text with a regular expression and return every match.",
        "Scan the text with a regular expression",
        "Find all matches of a pattern in the text of the conversation.",
    ),
    (_PATTERN, _FLAGS),
    (
        'Scan the following log for the pattern "{pattern}"',
        "Scan the text below for the pattern `{pattern}`",
        "Scan this text for {pattern}",
        "Find every match of `{pattern}` in this log",
        'Use regex_scan with the pattern "{pattern}"',
        "Which lines match the regular expression `{pattern}`? Scan them",
        'Scan the text for the pattern "{pattern}" with flags {flags}',
        "Scan the log for the pattern `{pattern}`, flags {flags}",
        'Search the text for "{pattern}"',
    ),
)

ENTRIES = (
    REGEX_SCAN,
    Entry(
        "get_weather get_current_weather weather weather_lookup",
        ("Get weather", "Get the current weather in a city", "Current weather for a place.", "Look up the weather.",
         "Get the current weather in a given location", "Get the weather for a city"),
        (
            _CITY,
            Field("unit units", _one_of(*_UNITS), "Unit of temperature|celsius or fahrenheit", "string", _UNITS, False),
        ),
        (
            "What is the weather in {city}?", "What's the weather like in {city}?", "Weather in {city}?",
            "How is the weather in {city} today?", "weather {city}", "Is it raining in {city}?",
            "How warm is it in {city}?", "Tell me the weather in {city} in {unit}.",
            "How cold is it in {city} right now?",
            "What is the temperature in {city} in {unit}?", "Do I need an umbrella in {city}?",
            "Is it sunny in {city}?",
            "What is the weather in {city} right now? Use {unit}.", "Please check the weather for {city}.",
        ),
    ),
    Entry(
        "get_forecast weather_forecast",
        ("Get the weather forecast for the next days", "Forecast for a city."),
        (_CITY, Field("days num_days", _number(1, 14), "Number of days", "integer", (), False)),
        (
            "What is the forecast for {city}?", "Give me the weather forecast for {city} for {days} days.",
            "Forecast for {city}, next {days} days", "Show the {days} day forecast for {city}.",
        ),
    ),
    Entry(
        "get_time current_time get_current_time",
        ("Get the current time in a city", "Tell the time at a place."),
        (_CITY,),
        ("What time is it in {city}?", "What's the time in {city}?", "Tell me the time in {city}.", "time in {city}"),
    ),
    Entry(
        "web_search search search_web",
        ("Search the web", "Search the internet for a query."),
        (
            Field("query q", values.phrase, "What to search for"),
            Field("max_results limit", _number(1, 50), "How many at most|Number, or 10", "integer", (), False),
        ),
        (
            "Search the web for {query}", 'Search for "{query}".', "Look up {query}", 'Google "{query}"',
            'Search the web for "{query}" and give me {max_results} results.', 'Find web pages about "{query}".',
        ),
    ),
    Entry(
        "send_email email send_mail",
        ("Send an email", "Send an e-mail to somebody."),
        (
            Field("to recipient address", values.email_address, "Who receives it"),
            Field("subject", values.two_words, "The subject", "string", (), False),
            Field("body message text", values.sentence, "The text of the mail"),
        ),
        (
            'Send an email to {to} saying "{body}".', 'Email {to}: "{body}"', 'Write {to} an email: "{body}"',
            'Send {to} an email with the subject "{subject}" and the text "{body}".',
            'Send a mail to {to}, subject "{subject}", body "{body}".',
        ),
    ),
    Entry(
        "send_message send_sms text_message",
        ("Send a message to a person", "Send a text message."),
        (
            Field("to recipient name contact", Source.person, "Who receives it"),
            Field("text message body", values.sentence, "The message"),
        ),
        (
            'Tell {to} "{text}"', 'Send {to} the message "{text}".', 'Text {to}: "{text}"',
            'Message {to} and say "{text}".', 'Send a message to {to}: "{text}"',
        ),
    ),
    Entry(
        "create_event add_event schedule_meeting",
        ("Create an event in the calendar", "Schedule a meeting."),
        (
            Field("title name", values.two_words, "Title of the event"),
            Field("date day", values.date, "The day"),
            Field("time start", values.time_of_day, "When it begins", "string", (), False),
        ),
        (
            'Schedule a meeting "{title}" on {date} at {time}.', 'Put "{title}" in my calendar on {date}.',
            'Add an event called "{title}" on {date} at {time}.', 'Create the event "{title}" for {date}.',
        ),
    ),
    Entry(
        "set_timer start_timer timer",
        ("Set a timer", "Start a timer that rings."),
        (
            Field("minutes duration", _number(1, 90), "Number of minutes", "integer"),
            Field("label name", values.one_word, "What it is for", "string", (), False),
        ),
        (
            "Set a timer for {minutes} minutes.", "Timer {minutes} minutes", "Start a {minutes} minute timer.",
            'Set a timer for {minutes} minutes called "{label}".', "Wake me in {minutes} minutes.",
        ),
    ),
    Entry(
        "set_alarm alarm",
        ("Set an alarm", "Set the alarm clock."),
        (Field("time at", values.time_of_day, "Time of day"),),
        ("Set an alarm for {time}", "Wake me up at {time}", "Alarm at {time}, please.", "I must get up at {time}"),
    ),
    Entry(
        "translate translate_text",
        ("Translate a text into another language", "Translate text."),
        (
            Field("text", values.sentence, "The text to translate"),
            Field("language target_language target", _one_of(*_LANGUAGES), "The language to translate into"),
        ),
        (
            'Translate "{text}" into {language}.', 'How do you say "{text}" in {language}?',
            'What is "{text}" in {language}?', 'Put this into {language}: "{text}"',
        ),
    ),
    Entry(
        "calculate calculator evaluate",
        ("Evaluate an arithmetic expression", "Calculate the value of an expression."),
        (Field("expression formula", _sum, "The expression"),),
        ("What is {expression}?", "Calculate {expression}", "Compute {expression}.", "How much is {expression}?"),
    ),
    Entry(
        "convert_currency exchange",
        ("Convert money from one currency to another", "Convert an amount of money."),
        (
            Field("amount", values.any_number, "How much", "number"),
            Field("from_currency from source", _one_of("USD", "EUR", "GBP", "JPY"), "The currency it is in"),
            Field("to_currency to target", _one_of("CHF", "CAD", "AUD", "SEK", "INR"), "The currency to convert into"),
        ),
        (
            "Convert {amount} {from_currency} to {to_currency}.",
            "How much is {amount} {from_currency} in {to_currency}?",
            "What are {amount} {from_currency} in {to_currency}?",
        ),
    ),
    Entry(
        "get_stock_price stock_price",
        ("Get the price of a stock", "Current price of a share."),
        (Field("symbol ticker", lambda source: values.letters(source, source.between(3, 4)), "Symbol of the stock"),),
        ("What is the price of {symbol}?", "Stock price of {symbol}", "How much is one share of {symbol}?"),
    ),
    Entry(
        "play_music play_song play",
        ("Play music", "Play a song."),
        (
            Field("song title track", values.two_words, "Name of the song"),
            Field("artist singer", Source.person, "Who sings it", "string", (), False),
        ),
        ('Play "{song}".', 'Play "{song}" by {artist}.', 'I want to hear "{song}".', 'Put on "{song}" by {artist}.'),
    ),
    Entry(
        "set_light turn_light light_switch",
        ("Turn a light on or off", "Switch the light in a room."),
        (
            Field("room", _one_of(*_ROOMS), "The room"),
            Field("state", _one_of("on", "off"), "What the light should be", "string", ("on", "off")),
        ),
        (
            "Turn {state} the light in the {room}.", "Turn the {room} light {state}.",
            "Switch {state} the {room} light",
            "Light {state} in the {room}, please.",
        ),
    ),
    Entry(
        "set_temperature thermostat set_thermostat",
        ("Set the temperature of a room", "Set the thermostat."),
        (
            Field("temperature degrees", _number(10, 30), "Degrees", "integer"),
            Field("room", _one_of(*_ROOMS), "Which room", "string", (), False),
        ),
        (
            "Set the temperature to {temperature} degrees.", "Heat the {room} to {temperature} degrees.",
            "Make it {temperature} degrees in the {room}.", "Set the thermostat to {temperature}.",
        ),
    ),
    Entry(
        "read_file open_file",
        ("Read a file", "Return the contents of a file."),
        (Field("path file filename", values.file_path, "Path of the file"),),
        ("Read the file {path}", "Show me {path}", "What is in {path} ?", 'Open "{path}".', "Print the file `{path}`."),
    ),
    Entry(
        "write_file save_file",
        ("Write text to a file", "Save a text in a file."),
        (
            Field("path file", values.file_path, "Path of the file"),
            Field("text content", values.sentence, "What to write"),
        ),
        ('Write "{text}" to {path}', 'Save "{text}" in the file `{path}`.', 'Put the text "{text}" into "{path}".'),
    ),
    Entry(
        "list_files list_directory ls",
        ("List the files in a folder", "List a directory."),
        (
            Field("path folder directory", lambda source: f"/{source.word()}/{source.word()}", "The folder"),
            Field("recursive", lambda source: True, "Whether to go into folders", "boolean", (), False),
        ),
        ("List the files in {path}", "What is in the folder {path} ?", "Show all files in `{path}`."),
    ),
    Entry(
        "find_flights search_flights book_flight",
        ("Find flights between two cities", "Search for flights."),
        (
            Field("origin departure", Source.place, "Where the flight begins"),
            Field("target destination", Source.place, "Where the flight goes"),
            Field("date day", values.date, "The day", "string", (), False),
        ),
        (
            "Find flights from {origin} to {target} on {date}.", "I want to fly from {origin} to {target}.",
            "Flights from {origin} to {target}?", "Is there a flight from {origin} to {target} on {date}?",
        ),
    ),
    Entry(
        "book_table reserve_table",
        ("Book a table in a restaurant", "Reserve a table."),
        (
            Field("restaurant", values.one_word, "The restaurant", "string", (), False),
            Field("guests people", _number(1, 12), "Number of guests", "integer"),
            Field("time", values.time_of_day, "When"),
        ),
        (
            "Book a table for {guests} at {time}.", "Reserve a table for {guests} people at {time}.",
            'I need a table for {guests} guests at {time} in the restaurant "{restaurant}".',
        ),
    ),
    Entry(
        "add_task create_task add_todo",
        ("Add a task to the list of things to do", "Create a task."),
        (Field("task title text", values.phrase, "What is to be done"),),
        ('Add "{task}" to my list.', 'Remind me to "{task}".', 'New task: "{task}"', 'Add the task "{task}".'),
    ),
    Entry(
        "get_news news",
        ("Get the latest news", "News about a topic."),
        (Field("topic subject", values.one_word, "What the news are about"),),
        ("What is new about {topic}?", "News about {topic}", "Show me the latest news about {topic}."),
    ),
    Entry(
        "get_definition define dictionary",
        ("Look up what a word means", "Definition of a word."),
        (Field("word term", values.one_word, "The word"),),
        ("What does {word} mean?", 'Define "{word}".', "What is the meaning of {word}?", "Look up the word {word}."),
    ),
    Entry(
        "roll_dice dice",
        ("Roll dice", "Throw dice and return the numbers."),
        (
            Field("count dice", _number(1, 9), "How many dice", "integer"),
            Field("sides", _number(4, 20), "Sides of each", "integer", (), False),
        ),
        ("Roll {count} dice.", "Throw {count} dice with {sides} sides.", "Roll {count} dice with {sides} sides each."),
    ),
    Entry(
        "run_query sql query_database",
        ("Run a query on the database", "Run SQL."),
        (Field("query sql statement", lambda source: f"SELECT {source.word()} FROM {source.word()}", "The SQL query"),),
        ('Run the query "{query}".', "Run `{query}` on the database.", "Execute this SQL: {query}"),
    ),
    Entry(
        "get_directions route navigate",
        ("Get directions between two places", "Find a route."),
        (
            Field("start origin", Source.place, "Where to start"),
            Field("target destination end", Source.place, "Where to go"),
        ),
        (
            "How do I get from {start} to {target}?",
            "Route from {start} to {target}", "Navigate from {start} to {target}.",
        ),
    ),
)  # fmt: skip
