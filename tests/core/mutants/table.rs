//! The mutants: for each file of `lua/`, a text that the file holds once, and another text in its place.

/// A mutant a line, below the name of the file. Mutants of `plain/` are mutants of the plain script alone, all others of
/// the whole script. `\n` stands for a new line. None is here that each case finds which finds another of its file.
pub(super) const MUTANTS: &str = r#"
# plain/blocks.lua
held_until >= stop then return => held_until > stop then return
held_until > now and => held_until >= now and
.count == 0 then values => .count >= 0 then values
.. pack(TIME, now) .. => .. pack(TIME, stop) ..
math.min(level, times) => math.min(level, times - 1)
math.min(level + 1, 255) => level + 1
ended, kept = stop, => ended, kept = begins,
math.max(stop, kept) => stop
# plain/bucket.lua
-elapsed > rule.window => -elapsed >= rule.window
math.floor(rule.limit * period / refill) => math.ceil(rule.limit * period / refill)
elseif elapsed > 0 and rule.limit then => elseif elapsed > 0 then
(MOST_UNITS - MOST_UNITS % period) / period => MOST_UNITS / period
math.max(0, 1.0 * section.newest - from) => math.max(0, 1.0 * now - from)
math.min(units, rule.most) => math.min(units, section.units)
math.ceil(section.used / rule.period) => math.floor(section.used / rule.period)
# plain/calendar.lua
or bounds[count] <= now + AHEAD =>
rule.stop - newest < SAME_END => rule.stop - newest <= SAME_END
section.newest) >= SAME_END => section.newest) > SAME_END
math.max(0, section.used - units) => section.used - units
# plain/check.lua
if units > room then => if units >= room then
units <= rule.limit and times => units < rule.limit and times
usage_of(part, count < asked) => usage_of(part, count == 0)
has_changed = has_changed or section.used ~= used => has_changed = section.used ~= used
-part.units, ends[k]) => -part.units, ends[1])
if added > 0 then => if part.units > 0 then
# slots.lua
need > limit - used - ends[times] => need > limit - used
(need > 0 or units == 0) => need > 0
over > view.used and => over >= view.used and
score > now and score => score >= now and score
used = used - #found =>
not is_denied and count or 0 => count or 0
# plain/formats.lua
MOST_UNITS = 9007199254740991 => MOST_UNITS = 9007199254740990
A_MINUTE = 1000, 60000 => A_MINUTE = 1000, 59999
A_MINUTE = 1000, 60000 => A_MINUTE = 999, 60000
MOST_SECTIONS = 255 => MOST_SECTIONS = 254
LIMIT, LIMIT_SIZE = '<I7', 7 => LIMIT, LIMIT_SIZE = '<I6', 7
error({ reason = reason }) => error(reason)
# plain/kinds.lua
[1] = concurrency => [1] = steps
[2] = calendar => [2] = steps
limit = limit, most => limit = limit or 0, most
most = MOST_UNITS => most = MOST_UNITS - 1
section.used, 0, now, section.expires => section.used, 0, now, 0
# plain/operations.lua
block_until(parts, parts[1].units) => block_until(parts, math.max(parts[1].units, now))
if block then return block, 0 end => if block then return block, task.count end
  for i = first, last do values[i], expiries[i] = nil, nil end\n  local failure =>   local failure
# plain/steps.lua
if number <= section.released then return 0 end => if number < section.released then return 0 end
number >= section.taken_from and => number > section.taken_from and
section.read_newest - section.rule.places - 1) => section.read_newest - section.rule.places)
section.width == width and section.taken_from or 0 => section.taken_from
section.read_newest < newest then => section.read_newest <= newest then
rule.places <= MOST_PLACES and ring => rule.places < MOST_PLACES and ring
now + 2 * step + rule.window => now + step + rule.window
section.used > 0 and first_with(section, section.used) or 0 => newest
units_until(section, number) - units_until(section, number - 1) => units_until(section, number)
section.used > 0 and first_with(section, section.used) * section.rule.step or 0 => section.newest
section.used >= NARROW.wrap or => section.used > NARROW.wrap or
was_wide and section.read_used > section.released_units => was_wide
# plain/value.lua
if part.expires <= now then => if part.expires <= now + 1 then
if section.used > 0 then sections[#sections + 1] = section end => sections[#sections + 1] = section
expires < release or => expires <= release or
counts and section.due or 0 => section.due
is_wide = is_wide or section.needs_wide => is_wide = section.needs_wide
if not counts then section.newest, section.base = 0, 0 end =>
count == #part.rules and => true and
dues[2] or FOR_EVER => dues[2] or 0
# fast/decide.lua
action == SHADOWS and admitted or task.count => task.count
if is_check and count == 0 then => if is_check and count == 9 then
unpack('<I6', held) > now or => unpack('<I6', held) > now + 1 or
  blocks_found = 1 -- =>   --
score == false and used < policy.limit => used < policy.limit
used < policy.limit => used <= policy.limit
used + 1, latest, 0 => used, latest, 0
used - 1, tonumber(newest) => used, tonumber(newest)
elseif action > RENEW and is_held => elseif action > RENEW
first, count = last + 1, 0 end => first = last + 1 end
wide, base, units, used, second, third) => wide, base, units, used, second, 0)
not fits and count > 1 then => false then
(wide == 0 or wide == 1) => true
second + units <= policy[wide * 3 + 2] and third => third
second + units <= policy[wide * 3 + 2] => second + units <= policy[5]
now < due and total <= policy[wide * 3 + 1] then => now < due and total <= policy[4] then
if fit and now < due and => if fit and now <= due and
if usage and not are_in then => if usage then
usage, i, reply, k => usage, i, '', k
later.units * count => task.units * count
#value > 63 and unpack('<I6', value) == policy.mark => #value > 63
is_check and units or -2 ^ 60 => units
is_charge = units > 0 and not denied => is_charge = units > 0
newest <= current and #value >= ring_end => #value >= ring_end
if newest + retention <= now then => if newest + retention < now then
used, base, head, tail = 0, 0, '', rep => used, base, head, tail = 0, base, '', rep
if gone >= newest_number - places then => if gone > newest_number - places then
if rules > 1 then second, third = second + units, third + units end =>
if used <= policy[1] then => if true then
window + 1000 => window
lag > 0 and start + lag > now and => lag > 0 and
if last > first then again => if false then again
# fast/steps.lua
if gone >= number then return 0, 0 end => if gone > number then return 0, 0 end
if newest + rule.lag <= now then\n      if step => if newest <= now then\n      if step
if step > now and newest > 0 then return end =>
or used == 0 and places > 0 and size == 7 then return end => then return end
if is_check and used > rule.limit or used >= wrap => if used > rule.limit or used >= wrap
if new and new.units == units then => if new then
if newest ~= unpack('<I6', arg, #arg - (rules - k) * 6 - 5) then return end =>
if newest + rule.lag <= now or newest ~= => if newest ~=
rule.lag <= now or newest ~= now - now % rule.step + rule.step then => rule.lag <= now then
if totals[k] <= before then return end => if totals[k] < before then return end
policy.new = is_check and { => policy.new = {
if not is_new then used => if true then used
# fast/usage.lua
#body - 1 - rules * 16 - bytes => #body - rules * 16 - bytes
base = unpack('<I7', body, at - 7) => base = 0
first, second = second, third\n  end\n  return reply => end\n  return reply
units > (rules < 4 => units >= (rules < 4
if since > now or wide => if wide
wide == 1 then entry, size, wrap = '<I7', 7, 2 ^ 53 end\n  for k = 1, rules do\n    local used => wide > 1 then entry, size, wrap = '<I7', 7, 2 ^ 53 end\n  for k = 1, rules do\n    local used
wide ~= 0 and wide ~= 1 or => false or
value, 37 + k * 7), rules < 4 => value, 44), rules < 4
  if over <= 0 and now < due and not =>   if now < due and not
over <= 0 and now < due and not is_calendar => over <= 0 and now < due
if newest % step > 0 or => if
gone > number - places - 1 and gone or number - places - 1 => number - places - 1
at + places * size, others => at + places * size, due
# fast/queue.lua
mark ~= policy.mark or newest => newest
retention + 1000 => retention
used > 0 and newest <= start => used > 0
newest > start + step or =>
if gone >= number then => if gone > number then
used, base = 0, 0 => base = 0
first_with(gone + 1 => first_with(gone
if kept > 1 then base => if kept > 2 then base
used = (total - base) % 65536 => used = total - base
units == 0 or is_denied => units == 0
place > count and number => place >= count and number
if used + units > 65535 then return end =>
lag > 0 and start + lag > now and => lag > 0 and
#body) => #body - 1)
# fast/policy.lua
if class == 0 then return false end =>
local most = 65535 => local most = 65536
second < most and second or most => second
third < most and third or most => third
rules > 3 and class == 1 and 2 or class => class
rules == 2 and '<I7I7' => rules == 2 and '<I7I6'
unpack('<I6', arg, 40) => unpack('<I6', arg, 34)
while i <= count and bounds[i] <= now do => while i <= count and bounds[i] < now do
# fast/bucket.lua
if gained < 0 then return end =>
fits and units <= ( => fits and units < (
fits, usage = fits and units => fits, usage = units
k == 1 and 6 or rules + 4 + k * 2 => 6
to_fill - to_fill % 1 => to_fill
or 0)) * refill => or 0)) * period
- missing) / period => - missing) / period + 1
# task.lua
action % JOINED => action
JOINED = 16 => JOINED = 8
'<I1I4I7I1I2' => '<I1I4I7I1I1'
count = count => count = 1
units = units => units = units % 2 ^ 48
block_count = block_count => block_count = 0
policy = nil => policy = false
# operation.lua
= task.block_count, => = 0,
last, task = first, following => last, task = first, tasks[ARGV[1]]
# write.lua
next_block, admitted) => next_block, 1)
next_block, admitted) => last_part + 1, admitted)
local key, value, expires, written = KEYS[part] => local key, value, expires, written = KEYS[first]
has_begun = has_begun or value =>
#problem) .. problem, 0\n => #problem) .. problem, count\n
'-inf', now) => '-inf', now + 1)
try('SETRANGE', key, offsets[part], value) => try('SETRANGE', key, '0', value)
# call.lua
if version == CALL_VERSION then => if version < 128 then
'PXAT', 0 => 'PX', 0
TAKE, RENEW = 1, 2, 3, 7 => TAKE, RENEW = 1, 3, 2, 7
TAKE, RENEW = 1, 2, 3, 7 => TAKE, RENEW = 1, 2, 3, 5
local GONE = '' => local GONE = '-'
local blocks_found -- => local blocks_found = 0 --
SLOTS, QUEUE = 1, 3, 4, 5 => SLOTS, QUEUE = 2, 3, 4, 5
SLOTS, QUEUE = 1, 3, 4, 5 => SLOTS, QUEUE = 1, 4, 3, 5
"#;
