// The script's text: the files of this folder, joined. README.md beside this file says what each does.
concat!(
    include_str!("call.lua"),
    "local function plain_script()\n",
    include_str!("plain/formats.lua"),
    include_str!("plain/steps.lua"),
    include_str!("plain/bucket.lua"),
    include_str!("plain/concurrency.lua"),
    include_str!("plain/calendar.lua"),
    include_str!("plain/kinds.lua"),
    include_str!("plain/value.lua"),
    include_str!("plain/check.lua"),
    include_str!("plain/blocks.lua"),
    include_str!("plain/operations.lua"),
    "return decide\n",
    "end\n",
    include_str!("fast_path.lua"),
    include_str!("main.lua"),
)
