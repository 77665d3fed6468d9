"""Sample names of people and of leads."""

PEOPLE = (
    "Anna", "Boris", "Clara", "Denis", "Elena", "Fedor", "Galina", "Igor", "Julia", "Kirill",
    "Larisa", "Maxim", "Nina", "Oleg", "Polina", "Roman", "Sofia", "Timur", "Vera", "Yuri",
)  # fmt: skip

TITLES = (
    "Studio, Garden Street 4",
    "Two rooms, Mill Lane 17",
    "House by the lake",
    "Office, North Quay 2",
    "Three rooms, Oak Alley 9",
    "Penthouse, River View",
    "Garage, Station Road",
    "Shop, Market Square 1",
    "One room, School Lane 33",
    "Cottage, Pine Hill",
    "Warehouse, Dock 6",
    "Loft, Old Foundry",
    "Two rooms, Church Street 8",
    "Plot, Meadow Road 21",
    "Four rooms, Castle Street 5",
    "Studio, Harbour Tower",
    "House, Orchard Way 12",
    "Office, Glass Yard 3",
    "One room, Bridge Street 40",
    "Villa, South Shore",
    "Cafe, Fountain Square",
    "Three rooms, Linden Row 7",
    "Loft, Canal Works",
    "Cottage, Windmill Field",
)
