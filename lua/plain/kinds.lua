-- The kinds of rules, by the number that stands in the label. A kind is a table of functions:
--
-- new(rule, first, second)   names the two numbers of a label, and sets `window`: how long after the last release a key
--                            may expire. `rule.limit` is the caller's: others have none. `rule.most` is what a
--                            settlement can reach
-- advance(section)           brings a section up to date: drops units that are released or not believed
-- charge(section, units)     adds units now
-- take(section, units, stop) takes units from the step that ends at `stop`, at most those that are there; of a bucket,
--                            less the refill since `stop`
-- fits_at(section, units)    when units fit that do not fit now, although they are within the limit
-- describe(section)          sets the `units` that count, and three times: when the section is `due`, the `start` of the
--                            newest step, the last `release`
--
-- Rules of others have no limit, and come to `new`, `advance` and `describe` alone. A calendar rule has `read_details`
-- besides, and steps have `body`, which sets the bytes of that name: see their files. Slots are no sections, and
-- `slots.lua` has all about them. A section has `rule`, and as stored `used`, `newest`, `base` and `body`.

local concurrency = { new = function(rule, _, expiry) rule.expiry = expiry end }

local KINDS = {
  [0] = steps,
  [1] = concurrency,
  [2] = calendar,
  [8] = bucket,
}

-- A kind that a later version has added: the sections are carried along until the key expires, so that two versions
-- of a service can share the key.
local unknown = { new = function(rule) rule.window = 0 end, advance = function() end }

function unknown.describe(section)
  section.units, section.due, section.start, section.release = section.used, 0, now, section.expires
end

-- Reads the rule of a label. The limit is the caller's; a rule of others has none.
local function rule_of(label, limit)
  local first, second = unpack(LABEL, label)
  local number = first % KIND
  local kind = KINDS[(first - number) / KIND] or unknown
  local rule = { kind = kind, label = label, limit = limit, most = MOST_UNITS }
  rule.kind.new(rule, number, second)
  return rule
end
