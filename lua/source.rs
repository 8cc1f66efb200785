// The script's text: the files of this folder, joined. README.md beside this file says what becomes of each.
concat!(
    "local is_writing = false\n",
    "local function execute(...)\n",
    include_str!("steps.lua"),
    include_str!("checks.lua"),
    "function slow_path()\n",
    include_str!("layout.lua"),
    include_str!("settle.lua"),
    "end\n",
    include_str!("operations.lua"),
    "end\n",
    include_str!("main.lua"),
)
