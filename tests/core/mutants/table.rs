//! The mutants: for each file of `lua/`, a text that the file holds once, and another text in its place.

/// A mutant a line, below the name of the file. Mutants of `plain/` are mutants of the plain script alone, all others of
/// the whole script. `\n` stands for a new line.
pub(super) const MUTANTS: &str = r#"
# plain/blocks.lua
held_until >= stop then return => held_until > stop then return
held_until > now and => held_until >= now and
if stop > latest then => if stop >= latest then
local latest, reply = now, nil => local latest, reply = 0, nil
for place = 0, count - 1 do => for place = 0, count - 2 do
sections[1].units < strikes => sections[1].units <= strikes
.count == 0 then values => .count >= 0 then values
.count == 0 then values => .count > 0 then values
if stop > now then => if stop >= now then
.. pack(TIME, now) .. => .. pack(TIME, stop) ..
kept <= now or => kept < now or
begins >= ended then => begins > ended then
math.min(level, times) => math.min(level, times - 1)
math.min(level + 1, 255) => level + 1
ended, kept = stop, => ended, kept = begins,
math.max(stop, kept) => stop
#held < BLOCK_SIZE + 10 => #held < BLOCK_SIZE + 11
# plain/bucket.lua
-elapsed > rule.window => -elapsed >= rule.window
math.floor(rule.limit * period / refill) => math.ceil(rule.limit * period / refill)
missing - elapsed * rule.refill => missing - elapsed
elseif elapsed > 0 and rule.limit then => elseif rule.limit then
elseif elapsed > 0 and rule.limit then => elseif elapsed > 0 then
(MOST_UNITS - MOST_UNITS % period) / period => MOST_UNITS / period
math.max(0, 1.0 * section.newest - from) => (1.0 * section.newest - from)
math.max(0, 1.0 * section.newest - from) => math.max(0, 1.0 * now - from)
math.max(0, math.min(units, rule.most) * rule.period - refill) => (math.min(units, rule.most) * rule.period - refill)
math.min(units, rule.most) => math.min(units, section.units)
math.max(0, section.used - => (section.used -
math.ceil(section.used / rule.period) => math.floor(section.used / rule.period)
section.newest + missing_for => section.newest + missing_for + 1
# plain/calendar.lua
12 * 3600000 => 11 * 3600000
bounds[k] <= now do => bounds[k] < now do
48 * 3600000 => 47 * 3600000
or bounds[count] <= now + AHEAD =>
while bounds[k] <= now + AHEAD => while bounds[k] < now + AHEAD
bounds[k] + SAME_END - 1 => bounds[k]
rule.stop - newest < SAME_END => rule.stop - newest <= SAME_END
math.max(newest, rule.stop) or newest => rule.stop or newest
section.used + units, math.max(section.newest, section.rule.stop) => section.used + units, section.rule.stop
section.newest) >= SAME_END => section.newest) > SAME_END
if math.abs(stop - section.newest) >= SAME_END then return end =>
math.max(0, section.used - units) => section.used - units
# plain/check.lua
if units > room then => if units >= room then
math.min(count, (room - room % units) / units) => (room - room % units) / units
units <= rule.limit and times => units < rule.limit and times
usage_of(part, count < asked) => usage_of(part, count == 0)
local charged = part.units * count => local charged = part.units
if charged > 0 then write(part) end =>
has_changed = has_changed or section.used ~= used => has_changed = section.used ~= used
part.units, count) => part.units, asked)
-part.units, ends[k]) => -part.units, ends[1])
rule.most - section.units => rule.most
math.min(part.units, rule.most - section.units) => part.units
if added > 0 then => if part.units > 0 then
if part.units < 0 then => if true then
#arg - #rules * STEP_END_SIZE + 1 => #arg - #rules * STEP_END_SIZE
# slots.lua
ID_SIZE + 1 => ID_SIZE
score > now and score <= latest => score > now and score < latest
if not held[all[k]] then => if true then
times * units + units do => times * units + 1 do
need > limit - used => need >= limit - used
need > limit - used - ends[times] => need > limit - used
(need > 0 or units == 0) => true
(need > 0 or units == 0) => need > 0
view.limit + view.units => view.limit
over - 1) => over)
over > view.used and => over >= view.used and
expiries[i] = tonumber(last), {}, view.window => expiries[i] = 0, {}, view.window
for k = 1, taken do => for k = 1, 1 do
view.used + taken, latest => view.used, latest
score > now and score => score >= now and score
bits[byte] + 2 ^ place => bits[byte] + 1
local place = (k - 1) % 8 => local place = k % 8
used = used - #found =>
latest = used > 0 and expiry => latest = used > 9 and expiry
ask('ZADD', i, spread(pairs)) =>
latest = tonumber(last)\n  else => latest = 0\n  else
action == RENEW) end => true) end
not is_denied and count or 0 => count or 0
# plain/formats.lua
MOST_UNITS = 9007199254740991 => MOST_UNITS = 9007199254740990
A_MINUTE = 60000 => A_MINUTE = 59999
FOR_EVER = 2 ^ 47 => FOR_EVER = 2 ^ 46
MOST_SECTIONS = 255 => MOST_SECTIONS = 254
LIMIT, LIMIT_SIZE = '<I7', 7 => LIMIT, LIMIT_SIZE = '<I6', 7
BOUNDARY = '<I6' => BOUNDARY = '<I5'
POLICY_AT = 17 => POLICY_AT = 16
OTHER_TIME = '\1', '\2', '\4' => OTHER_TIME = '\1', '\2', '\2'
error({ reason = reason }) => error(reason)
# plain/kinds.lua
[1] = concurrency => [1] = steps
[2] = calendar => [2] = steps
limit = limit, most => limit = limit or 0, most
most = MOST_UNITS => most = MOST_UNITS - 1
or unknown => or steps
rule.kind.new(rule, number, second) => rule.kind.new(rule, second, number)
[8] = bucket => [7] = bucket
local first, second = unpack(LABEL, label) => local first, second = unpack(LABEL, label), 0
function unknown.advance() end => function unknown.advance(section) section.used = 0 end
section.used, 0, now, section.expires => section.used, 0, now, 0
# plain/operations.lua
  values[parts[1].i] = GONE\n =>
parts[1].units, LAST => parts[1].units + 1, LAST
block_until(parts, parts[1].units) => block_until(parts, math.max(parts[1].units, now))
limit, limit_at = unpack(LIMIT, arg, limit_at) => limit = unpack(LIMIT, arg, limit_at)
task.action == TAKE and -task.units => task.action == TAKE and 1 - task.units
task.policy_at > 0 and => task.policy_at > 1 and
if block then return block, 0 end => if block then return block, task.count end
task.action == SHADOWS and admitted or task.count => task.count
  for i = first, last do values[i], expiries[i] = nil, nil end\n  local failure =>   local failure
# plain/steps.lua
number < section.read_newest - section.rule.places => number <= section.read_newest - section.rule.places
if number <= section.released then return 0 end => if number < section.released then return 0 end
number >= section.taken_from and => number > section.taken_from and
- section.released_units - taken\n => - taken\n
if units_until(section, middle) >= units then => if units_until(section, middle) > units then
section.read_newest - section.rule.places - 1) => section.read_newest - section.rule.places)
  section.base = 0\n =>   section.base = 1\n
if unpack(format, section.body, at) < number then => if unpack(format, section.body, at) <= number then
position(section, number + 1) - 1 => position(section, number) - 1
section.width == width and section.taken_from or 0 => section.taken_from
position(section, section.released + 1) => 1
section.read_newest < newest then => section.read_newest <= newest then
rule.places <= MOST_PLACES and ring => rule.places < MOST_PLACES and ring
now + 2 * step + rule.window => now + step + rule.window
section.used > 0 and first_with(section, section.used) or 0 => newest
units_until(section, number) - units_until(section, number - 1) => units_until(section, number)
section.used > 0 and first_with(section, section.used) * section.rule.step or 0 => section.newest
release > math.max(now, start) and release or newest => newest
section.used >= NARROW.wrap or => section.used > NARROW.wrap or
was_wide and section.read_used > section.released_units => was_wide
# plain/value.lua
if part.expires <= now then => if part.expires <= now + 1 then
if section.used > 0 then sections[#sections + 1] = section end => sections[#sections + 1] = section
expires < release or => expires <= release or
expires > release + A_MINUTE => false
math.min(latest.rule.window, A_MINUTE) => math.max(latest.rule.window, A_MINUTE)
since = math.max(since, section.start) => since = section.start
counts and section.due or 0 => section.due
section.release > latest.release => section.release < latest.release
is_wide = is_wide or section.needs_wide => is_wide = section.needs_wide
if not counts then section.newest, section.base = 0, 0 end =>
part.mark + (is_wide and 1 or 0) or 0 => part.mark or 0
count == #part.rules and => true and
local i = math.min(k, 2) => local i = math.min(k, 1)
dues[2] or FOR_EVER => dues[2] or 0
# fast/decide.lua
action == SHADOWS and admitted or task.count => task.count
if is_check and count == 0 then => if is_check and count == 9 then
held, 8, 8) ~= '\1') then reply = nil end => held, 8, 8) ~= '\1') then end
unpack('<I6', held) > now or => unpack('<I6', held) > now + 1 or
  blocks_found = 1 -- =>   --
block_count > 0 and blocks_found ~= 0 then => false then
spread(KEYS, last_part + 1) => spread(KEYS, last_part + 2)
ends > now and => ends >= now and
score == false and used < policy.limit => used < policy.limit
used < policy.limit => used <= policy.limit
used + 1, latest, 0 => used, latest, 0
used - 1, tonumber(newest) => used, tonumber(newest)
elseif action > RENEW and is_held => elseif action > RENEW
action == RENEW and is_held => action == RENEW
first, count = last + 1, 0 end => first = last + 1 end
first, count = last + 1, 0 end => count = 0 end
again or i + 1 => i + 1
wide, base, units, used, second, third) => wide, base, units, used, second, 0)
not fits and count > 1 then => false then
since <= now and now < others => now < others
since <= now and now < others => since <= now
(wide == 0 or wide == 1) => true
totals <= policy[wide * 3 + 2] and thirds => thirds
totals <= policy[wide * 3 + 2] => totals <= policy[5]
and thirds <= policy[wide * 3 + 3] =>
now < due and total <= policy[wide * 3 + 1] then => now < due and total <= policy[4] then
now < due and total <= policy[wide * 3 + 1] then => now < due then
if fit and now < due and => if fit and now <= due and
if is_usual and now < due then => if is_usual then
now >= due and wide == 0 and is_charge then => now >= due and is_charge then
if usage and not are_in then => if usage then
usage, i, reply, k => usage, first, reply, k
usage, i, reply, k => usage, i, '', k
later.units * count => task.units * count
#value > 63 and unpack('<I6', value) == policy.mark => #value > 63
counts, '43' => counts, '6'
is used\n        if fits and is_charge then counts = nil end => is used\n
second, third)\n          if fits and is_charge then counts = nil end => second, third)\n
is_check and units or -2 ^ 60 => units
is_charge = units > 0 and not denied => is_charge = not denied
is_charge = units > 0 and not denied => is_charge = units > 0
# fast/steps.lua
lag > 0 and lag - step or 0 => 0
if gone >= number then return 0, 0 end => if gone > number then return 0, 0 end
if gone < number - places then => if gone <= number - places then
% wrap, total\n => % wrap, base\n
rep(entry, behind / size) .. => rep(entry, behind) ..
if newest + rule.lag <= now then\n      if step => if newest <= now then\n      if step
if step > now and newest > 0 then return end =>
or used == 0 and places > 0 and size == 7 then return end => then return end
else base_1 = base end => end
sub(value, copied, at - #head - 1) => sub(value, copied, at - 1)
    elseif newest ~= current then\n      return\n =>
if is_check and used > rule.limit or used >= wrap => if used >= wrap
if is_check and used > rule.limit or used >= wrap => if is_check and used > rule.limit
if is_check and used > rule.limit or used >= wrap => if used > rule.limit or used >= wrap
elseif newest < others then others = newest end => end
expires = expires + (window < 60000 and window or 60000)\n    expiries[i] => expires = expires + window\n    expiries[i]
if new and new.units == units then => if new then
if newest ~= unpack('<I6', arg, #arg - (rules - k) * 6 - 5) then return end =>
if newest + rule.lag <= now or newest ~= => if newest ~=
rule.lag <= now or newest ~= now - now % rule.step + rule.step then => rule.lag <= now then
if totals[k] <= before then return end =>
if totals[k] <= before then return end => if totals[k] < before then return end
size == 2 and 2 ^ 16 or 2 ^ 53, '' => 2 ^ 53, ''
policy.new = is_check and { => policy.new = {
is_new and 31 or at) => at)
if not is_new then used => if true then used
is_new and shape.tail or '' => ''
    offsets[i] = nil\n =>
if action == TAKE then return not is_new and take(policy, i, units) or nil end =>
# fast/first.lua
newest > current or #value => #value
44 + policy.rules * 7 => 43 + policy.rules * 7
if newest + retention <= now then => if newest + retention < now then
used, base, changed = 0, 0, rep('\0\0', places) => used, changed = 0, rep('\0\0', places)
used, base, changed = 0, 0, rep('\0\0', places) => used, base = 0, 0
if gone >= number - places then => if gone > number - places then
rep(entry, places - place) => rep(entry, places)
gap == 1 and entry or rep(entry, gap) => entry
if used + units > policy[1] then return end =>
lag > 0 and current - step + lag > now => lag > 0
lag > 0 and current - step + lag > now => false
if current - step > since then since = current - step end =>
if current + retention > expires then => if current > expires then
(window < 60000 and window or 60000) => 60000
# fast/usage.lua
if wide == 1 then entry, size, wrap = '<I7', 7, 2 ^ 53 end\n  for k = 1, rules do\n    local over => for k = 1, rules do\n    local over
44 + rules * 7, narrow => 43 + rules * 7, narrow
#body - 1 - rules * 16 - bytes => #body - rules * 16 - bytes
57 + rules * 7 + (#value => 56 + rules * 7 + (#value
at + 1) / 2 * size or at => at + 1) / 2 or at
base = unpack('<I7', body, at - 7) => base = 0
(now - now % step) / step + 1\n => (now - now % step) / step\n
narrow / 2, entry => narrow, entry
wrap, base, low, high) * step + retention) => wrap, base, low, high) * step)
first, second = second, third\n  end\n  return reply => end\n  return reply
first, second = second, third\n  end\n  return fits => end\n  return fits
units > (rules < 4 => units >= (rules < 4
if since > now or wide => if wide
wide == 1 then entry, size, wrap = '<I7', 7, 2 ^ 53 end\n  for k = 1, rules do\n    local used => wide > 1 then entry, size, wrap = '<I7', 7, 2 ^ 53 end\n  for k = 1, rules do\n    local used
wide ~= 0 and wide ~= 1 or => false or
value, 37 + k * 7), rules < 4 => value, 44), rules < 4
  if over <= 0 and now < due and not =>   if now < due and not
over <= 0 and now < due and not is_calendar => over <= 0 and not is_calendar
over <= 0 and now < due and not is_calendar => over <= 0 and now < due
if newest % step > 0 or => if
if gone >= number then => if gone > number then
elseif gone >= number - places then => elseif gone > number - places then
used, base = used - (total - base) % wrap, total => used = used - (total - base) % wrap
gone > number - places - 1 and gone or number - places - 1 => number - places - 1
% wrap < units then low => % wrap <= units then low
at + places * size, others => at + places * size, due
# fast/policy.lua
if class == 0 then return false end =>
local most = 65535 => local most = 65536
first < most and first or most => first
second < most and second or most => second
third < most and third or most => third
rules > 3 and class == 1 and 2 or class => class
rules == 2 and '<I7I7' => rules == 2 and '<I7I6'
unpack('<I6', arg, 40) => unpack('<I6', arg, 34)
while i <= count and bounds[i] <= now do => while i <= count and bounds[i] < now do
# fast/bucket.lua
if gained < 0 then return end =>
fits and units <= ( => fits and units < (
fits = fits and units => fits = units
k == 1 and 6 or rules + 4 + k * 2 => 6
if full > front[5] then => if true then
to_fill - to_fill % 1 => to_fill
(window < 60000 and window or 60000) => 60000
rules > 1 and 0 or 2 ^ 47 => 0
* shape[k * 2]\n => * shape[k * 2 - 1]\n
gained < missing and missing - gained or 0 => missing - gained
- missing) / shape[k * 2 - 1] => - missing) / shape[k * 2 - 1] + 1
usage .. pack('<I7I6I6', front[k + 7], now, 0) => usage .. pack('<I7I6I6', front[k + 7], 0, 0)
front[k + 7] + units * period => front[k + 7] + units
(missing % refill > 0 and 1 or 0) => 0
front[3], front[4], front[6], front[7] = policy.mark, now, 0, => front[3], front[4], front[6], front[7] = policy.mark, 0, 0,
# task.lua
action >= JOINED => action > JOINED
action % JOINED => action
JOINED = 16 => JOINED = 8
'<I1I4I7I1I2' => '<I1I4I7I1I1'
count = count => count = 1
units = units => units = units % 2 ^ 48
block_count = block_count => block_count = 0
policy_at = policy_at => policy_at = 0
policy = nil => policy = false
rules = nil => rules = {}
  tasks[arg] = task\n =>
# operation.lua
or read_task(ARGV[last + 1], tasks) => or read_task(ARGV[last], tasks)
= task.block_count, => = 0,
while last < last_part do => while last <= last_part do
while last < last_part do => while false do
if not following.is_joined then break end => if following.is_joined then break end
last, task = first, following => last, task = first, tasks[ARGV[1]]
# write.lua
admitted = next_block + block_count => admitted = next_block
last + 1, count => last + 1, 1
written = try('DEL', key) => written = nil
expiry_option, expires => 'PXAT', expires
next_block, admitted) => next_block, 1)
next_block, admitted) => last_part + 1, admitted)
for part = first, last do => for part = first, first do
if value == GONE then => if value == nil then
local key, value, expires, written = KEYS[part] => local key, value, expires, written = KEYS[first]
'table' and written.err => 'table' and written.ok
(written) == 'table' and written.err then => (written) == 'table' then
    break\n  end\n  has_begun =>   end\n  has_begun
has_begun = count, action >= RENEW => has_begun = count, false
      has_begun = true\n =>
has_begun, written = true, try => has_begun, written = false, try
has_begun = has_begun or value =>
string.gsub(problem, '^.*: %-', '') => problem
1, 255) => 1, 256)
1, 255) => 1, 99)
has_begun and 6 or 5 => has_begun and 5 or 6
#problem) .. problem, 0\n => #problem) .. problem, count\n
try('ZADD', key, spread(value[k])) => nil
'-inf', now) => '-inf', now + 1)
try('SETRANGE', key, offsets[part], value) => try('SETRANGE', key, '0', value)
try(expire, key, expires - expiry_origin) => try(expire, key, expires)
if expires and type(written) ~= 'table' then => if false then
replies[reply_count] = reply => replies[reply_count + 1] = reply
# call.lua
1, last_part + 1, 0\n => 1, last_part + 2, 0\n
version == CALL_VERSION + TIME_FOLLOWS and => version >= TIME_FOLLOWS and
if version == CALL_VERSION then => if version < 128 then
time[2] / 1000 => time[2] / 100
(ms - ms % 1) => ms
'PXAT', 0 => 'PX', 0
'PX', now - slack => 'PX', now
pack('<I6', now) => pack('<I6', now + 1)
TAKE, RENEW = 1, 2, 3, 7 => TAKE, RENEW = 1, 3, 2, 7
TAKE, RENEW = 1, 2, 3, 7 => TAKE, RENEW = 1, 2, 3, 5
local GONE = '' => local GONE = '-'
local blocks_found -- => local blocks_found = 0 --
STEPS, BUCKETS, SLOTS = 1, 3, 4 => STEPS, BUCKETS, SLOTS = 2, 3, 4
STEPS, BUCKETS, SLOTS = 1, 3, 4 => STEPS, BUCKETS, SLOTS = 1, 4, 3
nil, nil }, 1\n => nil, nil }, 2\n
"#;
