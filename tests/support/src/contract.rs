//! The contract of stores, as tests: see `contract!`.

use sluicegate::rule::MAX_UNITS;

use super::{
    outcome::ms as millis,
    prelude::*,
    rows::{Row, rows},
};

/// Makes one test of the rows, and one of each other sentence; `$new` is an `async fn() -> (impl Store, ManualClock)`.
#[macro_export]
macro_rules! contract {
    ($new:path) => {
        $crate::contract! { apart $new }
        $crate::sentences! { about_a_limiter $new, contract[&]: a_check_over_many_keys_is_atomic_under_concurrency }
    };
    // For a store that may decide the keys of one check separately.
    (apart $new:path) => {
        #[test]
        fn each_row_of_the_contract_holds() {
            $crate::sentence::of_each_row($new, &$crate::contract::all());
        }
        $crate::sentences! { about_a_limiter $new, contract[&]:
            the_largest_limit_is_counted_exactly
            running_totals_may_outgrow_32_and_53_bits
            hostile_keys_never_meet
            the_clock_may_show_the_epoch_or_its_latest_time
            the_largest_check_is_decided_and_settled
            exactly_the_limit_is_admitted_under_concurrency
        }
    };
}

pub fn all() -> Vec<Row> {
    [rows(CONTRACT), rows(EDGES)].concat()
}

const CONTRACT: &str = "
A denied check is charged nowhere
 wide = 10/1m,5/1h; narrow = 10/1m,1/1h; narrow bob 1
 3* wide alice 1 & wide bob 1 & narrow bob 1 ! = 10 5 10 5 9 0
 wide alice = 10 5; wide bob = 10 5; narrow bob = 9 0
A look changes nothing
 p = 2/1s@exact,3/1m; p alice 1; +500; p alice 1 = 0/1001 1/60500; 3* p alice = 0/1001 1/60500
 # Everything is released, but the store has dropped nothing.
 +1h; p alice = 2/0 3/0; @500; p alice = 0/1001 1/60500
A wait for almost the largest limit is exact
 # The used units and the cost add up to more than 2^53, where the script's numbers are not exact.
 p = 9007199254740991/1s@exact; p alice 1; +1; p alice 9007199254740990
 p alice 1 !1000; p alice 2 !1001; p alice 3 !1001
A cost above the limit never fits
 p = 5/1s,9007199254740991/1m; p alice 6 !never; p alice 9007199254740991 !never
 p alice 9007199254740992 !never; p alice max !never; p alice = 5 9007199254740991
A response that outlives its sliding step pays all the same
 p = 1000/1s; a: p a 0; b: p b 1; +5s; settle a 800 = 200; settle b 801 = 200
 p a 201 !; p a 200; p b 201 !; p b 200; +3s; p a = 1000; p b = 1000
A response that outlives its exact step pays all the same
 p = 1000/1s@exact; a: p a 0; b: p b 1; +5s; settle a 800 = 200; settle b 801 = 200
 p a 201 !; p a 200; p b 201 !; p b 200; +3s; p a = 1000; p b = 1000
A response that outlives its fixed window pays all the same
 p = 1000/1s@fixed; a: p a 0; b: p b 1; +5s; settle a 800 = 200; settle b 801 = 200
 p a 201 !; p a 200; p b 201 !; p b 200; +3s; p a = 1000; p b = 1000
A response that outlives the refill of its bucket pays all the same
 p = 1000+1000/1s@bucket; a: p a 0; b: p b 1; +5s; settle a 800 = 200; settle b 801 = 200
 p a 201 !; p a 200; p b 201 !; p b 200; +3s; p a = 1000; p b = 1000
A settlement after a reset charges what it adds
 # The reset forgot the charge, and so nothing can be taken back. The fixed window is the step of both charges.
 p = 10/1m,10/1h@fixed; up: p alice 4; down: p alice 4; +2s; reset p alice
 settle up 7 = 7 7; settle down 0 = 7 10
A settlement counts under the rules of its check
 before = p 10/1s@exact; after = p 10/1m; early: before alice 1; +2s; after alice 2
 settle early 5 = 6; after alice = 8; before alice = 6
Settling stops at the largest number
 p = 9007199254740991/1s@exact; p alice 5; +1; x: p alice 10; settle x max = 0; @1001; p alice = 5
A refund of a released step changes nothing
 p = 10/1s@exact,10/1m; early: p alice 4; late: p alice 4; +1001; settle early 3 = 10 3; +2m
 # Nothing is written either: after a step back of the clock, the released units still count.
 settle late 0 = 10 10; @0; p alice = 10 3
Further units go to the newest step while the clock is behind
 # Time stands still at the start of the newest step.
 p = 10/1s@100ms; x: p alice 1; @1150; p alice 1; @50; settle x 3 = 7; @2199; p alice = 7; @2200; p alice = 10
The newest step is taken back however much was charged before
 # In between, the totals of the charges outgrow 16 bits.
 p = 60000/1m; p alice 20000; +30s; p alice 20000; +30s; p alice 20000; +30s; p alice 20000; +30s
 x: p alice 20000; settle x 0 = 20000/31s
Settling takes no more than its step has
 # The reset forgot this charge. After the clock had stepped back, others charged this step and an earlier one.
 p = 10/1m; @5s; x: p alice 5; reset p alice; @0; p alice 4; @5s; p alice 2; settle x 0; p alice = 6
A reset forgets one key under one policy
 p = 10/1m; q = 10/1m; p alice 4; q alice 4; p bob 4; q bob 4; reset p alice; reset p carol
 p alice = 10; p bob = 6; q alice = 6
Policies do not meet
 a = p 1/1h; b = P 1/1h; c = p. 1/1h; d = p-q 1/1h; e = pp 1/1h; f = user 1/1h
 a p 1; a p 1 !; b p 1; b p 1 !; c p 1; c p 1 !; d p 1; d p 1 !; e p 1; e p 1 !; f p 1; f p 1 !
A new limit takes effect on existing counts
 few = p 5/1m; many = p 20/1m; many alice 8; few alice = 0; few alice 1 !; many alice = 12
A new window starts empty
 p = 10/1m; long = p 10/2m; steps = p 10/1m@2s; fixed = p 10/1m@fixed
 p alice 8; long alice = 10; steps alice = 10; fixed alice = 10
Sections of other rules are carried until they are released
 old = p 10/1s@exact,10/1h,10/2h; new = p 10/2h,10/1m; old alice 3; new alice 1; old alice = 7 7 6
 x: new alice 1; settle x 2; old alice = 7 7 4
 # The next write drops the shortest section for good, even if the clock steps back.
 +1001; new alice 1; @0; old alice = 10 7 3
Time stands still while the clock is behind
 # The charge goes to the newest step, since an older step would be released too early.
 p = 2/1s@100ms; p alice 1; @-1s; p alice 1 = 0/2100; p alice 1 !2100; @1099; p alice 1 !; @1100; p alice 2
Time does not stand still for what was taken back
 # A key without units has no newest step, even if it had one before.
 p = 5/1s@100ms,5/1m; @-30s; p alice 1; @0; early: p alice 0; @1250; late: p alice 1; settle late 0
 @1050; settle early 2 = 3/1050 2
A write of other rules releases steps for good
 # The first step is released, and the second still counts.
 before = p 7/10s@10s; after = p 7/1d; before alice 1; @10s; before alice 1; @20s; after alice 1
 @15s; before alice = 6
A step far ahead is not believed
 p = 2/1s@100ms; p alice 2; @-1100; p alice = 0; @-1101; p alice = 2
 # A look drops nothing; a charge drops the step for good.
 @0; p alice = 0; @-1101; p alice 1; @0; p alice = 2
A step far ahead is dropped from other rules
 own = p 10/1m; other = p 10/1s; +1h; other alice 4; @0; own alice 1; +1h; other alice = 10
Settling a bucket changes what is missing now
 # 2.5 units are missing, and then 12.5.
 p = 10+1/1s@bucket; a: p alice 4; b: p alice 2; +2500; settle a 3 = 7; settle b 12 = 0; p alice 0 !2500
 c: p carol 1; settle c max = /9007199254740000; d: p bob 2; +1999; settle d 0 = 10
A bucket gets no units back that it has refilled
 # Time has given 2 of the 4 of x back.
 p = 10+1/1s@bucket; x: p alice 4; p alice 2; +2000; settle x back = 8/2000; +2000; p alice = 10
 # It was full again meanwhile, and others have charged it.
 y: p bob 3; +3000; p bob 3; settle y back = 7; z: p bob 2; settle z back = 7
 # Once one of two was taken back, time gives the other its units.
 v: p carol 2; w: p carol 2; +1000; settle v back = 8/2000; +900; p carol 5; settle w back = 4/6s
 # A clock that steps back brings nothing back.
 u: p dan 2; +3s; p dan 1; @10s; settle u back = 9/2900
Time stands still for a bucket but not far ahead
 p = 2+1/1s@bucket; p alice 1; @-2s; p alice = 1; p alice 1; p alice 1 !3000; @-2001; p alice = 2
 # With a larger burst, a state further ahead is believed.
 large = p 5+1/1s@bucket; large alice = 3; @-5001; large alice = 5; @999; p alice 1 !; @1000; p alice 1
A write of other rules leaves a bucket as it is
 # They write while the clock is ahead by more than a full refill takes, and would be believed no longer.
 own = p 2+1/1s@bucket; others = p 9/1h; x: own alice 1; settle x 100; +1m; others alice 1
 @10s; own alice = 0; @99s; own alice = 1
A new burst takes effect and another refill starts full
 a = p 2+1/1s@bucket; b = p 5+1/1s@bucket; c = p 5+2/1s@bucket; d = p 5/1s; a alice 2
 b alice = 3; c alice = 5; d alice = 5; b alice 3; a alice = 0
";

/// Cases that random histories hardly meet, with the answers of the memory store.
const EDGES: &str = "
A total of 65536 is one too many for a narrow entry
 p = 1000000/1m@1s; p alice 1 = 999999/61000; +1000; p alice 65535 = 934464/61000; +1000; p alice 1 = 934463/61000
A refund takes no more than its period has
 # The reset forgot the charge.
 p = 9/day@UTC; x: p alice 4; reset p alice; p alice 1; settle x 0 = 9
Steps may span a window and a step
 # Their numbers differ by 2^16: with narrow entries, the first would be released with the second.
 p = 9/131071ms@2ms; p alice 1; @131072; p alice 1 = 7; @131073; p alice 0 = 8
A settlement at the largest number changes nothing and opens no step
 # The first is to one more than the largest number.
 p = 9007199254740991/1s@100ms; a: p alice 1; b: p alice 1; c: p alice 1; settle a 9007199254740990 = 0; @250
 settle b 2 = 0/850; settle c 0 = 1
A bucket is emptied by whole units
 # At most 2^53 - 1 units * ms are missing. After a millisecond, no whole number of units is.
 p = 6+4/7ms@bucket; x: p alice 6; +1; settle x max = /2251799813685246
A bucket of others keeps its time
 # A clock that was wrong while a caller without the bucket wrote does not empty it.
 both = p 9/1m,6+2/3ms@bucket; other = p 900/1m; x: both alice 6; settle x 100; @50; other alice 1; @0
 both alice = / 0/150
Totals of entries outgrow 16 bits under an exact rule
 p = 200000/65s@exact; +20000; p alice 20000 = 180000/65001; +20000; p alice 20000 = 160000/65001; +20000
 p alice 20000 = 140000/65001; +20000; p alice 20000 = 120000/65001; +20000; p alice 20000 = 120000/65001; +20000
 p alice 20000 = 120000/65001
Totals outgrow 16 bits under three rules
 p = 200000/1m,200000/1h,200000/1d; +1100; p alice 40000 = 160000/60900 160000/3658900 160000/87838900; +1100
 p alice 40000 = 120000/60800 120000/3657800 120000/87837800; +1100
 p alice 40000 = 80000/60700 80000/3656700 80000/87836700; +1100
 p alice 40000 = 40000/60600 40000/3655600 40000/87835600; +30000; p alice 1 = 39999/60600 39999/3625600 39999/87805600
 +30000; p alice 1 = 159998/60600 39998/3655600 39998/87775600; +30000
 p alice 1 = 199997/60600 39997/3625600 39997/87745600; +30000; p alice 1 = 199997/60600 39996/3655600 39996/87715600
Entries are wide while the totals of a minute are
 p = 60000/1m@1s; +25000; p alice 20000 = 40000/61000; +25000; p alice 20000 = 20000/61000; +25000
 p alice 20000 = 0/61000; +25000; p alice 20000 = 0/61000; +25000; p alice 20000 = 0/61000; +25000
 p alice 20000 = 0/61000
Totals of many steps outgrow 16 bits
 p = 60000/1m@1s; +7000; p alice 6900 = 53100/61000; +7000; p alice 6900 = 46200/61000; +7000
 p alice 6900 = 39300/61000; +7000; p alice 6900 = 32400/61000; +7000; p alice 6900 = 25500/61000; +7000
 p alice 6900 = 18600/61000; +7000; p alice 6900 = 11700/61000; +7000; p alice 6900 = 4800/61000; +7000
 p alice 6900 !5000 = 4800/54000; +7000; p alice 6900 = 4800/61000; +7000; p alice 6900 = 4800/61000
A rule has 256 places or 257
 p = 9/256s@1s,9/257s@1s; +1000; p alice 1 = 8/257000 8/258000; +1000; p alice 1 = 7/257000 7/258000; +1000
 p alice 1 = 6/257000 6/258000; +1000; p alice 1 = 5/257000 5/258000; +1000; p alice 1 = 4/257000 4/258000; +1000
 p alice 1 = 3/257000 3/258000; +1000; p alice 1 = 2/257000 2/258000; +1000; p alice 1 = 1/257000 1/258000; +50000
 p alice 1 = 0/257000 0/258000; +50000; p alice 1 !151000 = 0/207000 0/208000; +50000
 p alice 1 !101000 = 0/157000 0/158000; +50000; p alice 1 !51000 = 0/107000 0/108000; +50000
 p alice 1 !1000 = 1/57000 0/58000; +50000; p alice 1 = 7/257000 7/258000; +50000; p alice 1 = 7/257000 7/258000
A denial counts to the unit what has to go
 p = 9007199254740991/1m@1s; p alice 1; +1000; p alice 1; p alice 9007199254740991 !61000
A denial by the last rule waits for the step that brings the units
 p = 900/1m@1s,300/1h@1m; p alice 200; +60000; p alice 100; p alice 250 !3660000; p alice 200 !3600000
A denial by the third key names the first, and the second, whose step has ended
 p = 9/1m@1s; q = 1/1m@1s; p alice 1 & p bob 1 & q carol 1; +2000; p alice 1
 p alice 1 & p bob 1 & q carol 1 ! = 7 8 0; p alice 1 & p bob 1 & q dora 1 = 6 7 0
A denial while steps are released counts those that are left
 p = 5/1m@1s; +1000; p alice 1 = 4/61000; +1000; p alice 1 = 3/61000; +1000; p alice 1 = 2/61000; +1000
 p alice 1 = 1/61000; +1000; p alice 1 = 0/61000; +57500; p alice 4 !2500 = 1/3500; p alice 2 !500 = 1/3500
 p alice 5 !3500 = 1/3500; p alice 0 = 1/3500
Steps are released one by one and all at once
 p = 9/1m@1s; +1000; p alice 1 = 8/61000; +1000; p alice 1 = 7/61000; +1000; p alice 1 = 6/61000; +59500
 p alice 1 = 6/60500; +70000; p alice 3 = 6/60500; +5000; p alice 1 = 5/60500; +56000; p alice 1 = 7/60500; +5000
 p alice 7 = 1/60500
Entries of three rules become wide together
 p = 70000/1s,70000/1m@30s,200000/1h@30m; p alice 40000 = 30000/1007 30000/90000 160000/5400000; +100000
 p alice 1 = 69999/1001 69999/80000 159999/5300000; +1100; p alice 30000 = 40000/1006 39999/78900 129999/5298900
 +3600000; p alice 1 = 69999/1011 69999/78900 129998/5298900; +3600000
 p alice 1 = 69999/1016 69999/78900 199998/5298900
Four rules release apart
 p = 9/1s,19/1m,29/1h,39/1d; +300; p alice 1 = 8/1013 18/60700 28/3659700 38/87839700; +300
 p alice 1 = 7/1002 17/60400 27/3659400 37/87839400; +300; p alice 1 = 6/1008 16/60100 26/3659100 36/87839100; +300
 p alice 1 = 5/1014 15/60800 25/3658800 35/87838800; +300; p alice 1 = 5/1003 14/60500 24/3658500 34/87838500; +300
 p alice 1 = 5/1009 13/60200 23/3658200 33/87838200; +300; p alice 1 = 5/1015 12/60900 22/3657900 32/87837900; +300
 p alice 1 = 5/1004 11/60600 21/3657600 31/87837600; +300; p alice 1 = 5/1010 10/60300 20/3657300 30/87837300; +300
 p alice 1 = 5/1016 9/61000 19/3657000 29/87837000; +300; p alice 1 = 5/1005 8/60700 18/3656700 28/87836700; +300
 p alice 1 = 5/1011 7/60400 17/3656400 27/87836400; p alice 9 !57400 = 5/1011 7/60400 17/3656400 27/87836400; +61000
 p alice 9 = 0/1007 10/60400 8/3655400 18/87775400; +61000; p alice 9 !3534400 = 9/0 19/0 8/3594400 18/87714400
Steps that do not divide the window are released one by one
 p = 9/1m@7s; +3500; p alice 1 = 8/62500; +3500; p alice 1 = 7/66000; +3500; p alice 1 = 6/62500; +3500
 p alice 1 = 5/66000; +3500; p alice 1 = 4/62500; +3500; p alice 1 = 3/66000; +3500; p alice 1 = 2/62500; +3500
 p alice 1 = 1/66000; +1000; p alice 1 = 0/65000; +1000; p alice 1 !36000 = 0/64000; +35000; p alice 1 !1000 = 0/29000
 +1000; p alice 1 = 0/63000; +1000; p alice 1 !6000 = 0/62000; +5000; p alice 1 !1000 = 0/57000; +1000
 p alice 1 = 1/63000; +1000; p alice 1 = 0/62000; +1000; p alice 1 !5000 = 0/61000; +4000; p alice 1 !1000 = 0/57000
 +1000; p alice 1 = 1/63000; +1000; p alice 1 = 0/62000; +1000; p alice 1 !5000 = 0/61000; +4000
 p alice 1 !1000 = 0/57000
Two rules have steps that do not divide each other
 p = 90/1h@1m,50/1m@7s; +3500; p alice 1 = 89/3656500 49/62500; +3500; p alice 1 = 88/3653000 48/66000; +3500
 p alice 1 = 87/3649500 47/62500; +3500; p alice 1 = 86/3646000 46/66000; +3500; p alice 1 = 85/3642500 45/62500
 +3500; p alice 1 = 84/3639000 44/66000; +3500; p alice 1 = 83/3635500 43/62500; +3500
 p alice 1 = 82/3632000 42/66000; +1000; p alice 1 = 81/3631000 41/65000; +1000; p alice 1 = 80/3630000 40/64000
 +1000; p alice 1 = 79/3629000 39/63000; +1000; p alice 1 = 78/3628000 38/62000; +1000
 p alice 1 = 77/3627000 37/61000; +1000; p alice 1 = 76/3626000 36/67000; +1000; p alice 1 = 75/3625000 35/66000
 +1000; p alice 1 = 74/3624000 34/65000; +7000; p alice 8 = 66/3617000 26/65000; +7000
 p alice 8 = 58/3610000 18/65000; +7000; p alice 8 = 50/3603000 10/65000; +1000; p alice 1 = 49/3602000 9/64000; +1000
 p alice 1 = 48/3601000 8/63000; +1000; p alice 1 = 47/3660000 7/62000; +1000; p alice 1 = 46/3659000 6/61000; +1000
 p alice 1 = 45/3658000 5/67000; +1000; p alice 1 = 44/3657000 4/66000; +1000; p alice 1 = 43/3656000 3/65000; +1000
 p alice 1 = 42/3655000 2/64000; +1000; p alice 1 = 41/3654000 2/63000; +1000; p alice 1 = 40/3653000 1/62000; +1000
 p alice 12 !26000 = 40/3652000 1/61000; +1000; p alice 1 = 39/3651000 0/67000; +1000
 p alice 1 !3000 = 39/3650000 0/66000; +1000; p alice 1 !2000 = 39/3649000 0/65000; +1000
 p alice 1 !1000 = 39/3648000 0/64000; +1000; p alice 1 = 38/3647000 1/63000; +1000; p alice 1 = 37/3646000 0/62000
 +1000; p alice 1 !5000 = 37/3645000 0/61000; +1000; p alice 1 !4000 = 37/3644000 0/60000; +1000
 p alice 1 !3000 = 37/3643000 0/59000; +1000; p alice 1 !2000 = 37/3642000 0/58000
A refund takes from a step that is nearly released
 p = 9/1m@7s,99/1h; p alice 3 = 6/66000 96/3660000; +56500; x: p alice 3 = 3/65500 93/3603500; +3000
 settle x 1 = 5/62500 95/3600500; p alice 5 = 0/62500 90/3600500; p alice 1 !6500 = 0/62500 90/3600500
Entries of more than 2 bytes are released
 p = 1000000/10s@1s; p alice 70000 = 930000/11000; +1000; p alice 70000 = 860000/11000; +1000
 p alice 70000 = 790000/11000; +9500; p alice 1 = 859999/10500; p alice 999999 !1500 = 859999/10500
Too many units are used for entries of 2 bytes
 p = 200000/10s@1s; p alice 70000 = 130000/11000; +1000; p alice 70000 = 60000/11000; +1000; p alice 60000 = 0/11000
 p alice 100000 !10000 = 0/11000
A refund makes entries narrow no sooner
 p = 1000000/10s@1s; p alice 70000 = 930000/11000; +1000; b: p alice 3 = 929997/11000; settle b 0 = 930000/10000
 p alice 1 = 929999/11000
A refund takes no units of others than its step has
 p = 10/10s@1s; a: p alice 5 = 5/11000; reset p alice; p alice 2 = 8/11000; +1000; p alice 3 = 5/11000
 settle a 0 = 7/11000; p alice 9 !11000 = 7/11000
Two steps are released before two units fit
 p = 10/10s@1s; p alice 1 = 9/11000; +1000; p alice 9 = 0/11000; +1000; p alice 2 !10000 = 0/10000
A refund of all units of the newest step leaves the step before it
 p = 10/10s@1s; p alice 2 = 8/11000; +1000; b: p alice 3 = 5/11000; settle b 0 = 8/10000; p alice 9 !10000 = 8/10000
A bucket is charged while the clock is behind
 p = 10+10/10s@bucket; p alice 3 = 7/3000; +2000; p alice 1 = 8/2000; -500; p alice 7 = 1/9500; p alice 1 = 0/10500
A bucket is filled to the last unit
 p = 10+10/10s@bucket; p alice 3 = 7/3000; p alice 7 = 0/10000; +1000; p alice 1 = 0/10000; p alice 1 !1000 = 0/10000
A bucket is full a fraction of a millisecond after its key would expire
 p = 100000000+100000000/1s@bucket; p alice 1 = 99999999/1; +501; p alice 50000001 = 49999999/501; +500
 p alice 100000000 !1 = 99999999/1
";

/// A limiter for tests on a busy machine.
pub fn patient(store: impl Store) -> Limiter {
    let limiter = crate::limiter(store).timeout(Duration::from_secs(30));
    limiter.publish_policies(false) // tests count keys and commands
}

pub async fn the_largest_limit_is_counted_exactly(gate: &Limiter, clock: ManualClock) {
    let policy = policy("p", "9007199254740991/1s@exact");
    for _ in 0..3 {
        assert!(admits(gate, &policy, "alice", MAX_UNITS - 1).await);
        assert_eq!(left(gate, &policy, "alice").await, 1);
        assert!(!admits(gate, &policy, "alice", 2).await);
        clock.advance(ms(1));
        assert!(admits(gate, &policy, "alice", 1).await);
        let decision = check(gate, &policy, "alice", 1).await;
        assert_eq!(retry_after(&decision), Some(ms(1_000)));
        clock.advance(ms(1_000));
        assert_eq!(left(gate, &policy, "alice").await, MAX_UNITS - 1);
        clock.advance(ms(1));
    }
    // Running totals of such numbers soon overflow 64 bits.
    for _ in 0..3_000 {
        clock.advance(ms(1_001));
        assert!(admits(gate, &policy, "alice", MAX_UNITS).await);
    }
    assert_eq!(left(gate, &policy, "alice").await, 0);
}

/// The script stores running totals in four bytes as long as the units that count fit.
pub async fn running_totals_may_outgrow_32_and_53_bits(gate: &Limiter, clock: ManualClock) {
    for cost in [1 << 25, 1 << 29, 1 << 40, MAX_UNITS / 11] {
        let policy = policy("p", &format!("{}/1s@100ms", 11 * cost));
        let key = cost.to_string();
        // Eleven steps count at the same time.
        for step in 0..300_u64 {
            assert!(admits(gate, &policy, &key, cost).await, "{step}");
            let room = cost * 10_u64.saturating_sub(step);
            assert_eq!(left(gate, &policy, &key).await, room, "{step}");
            if room == 0 {
                let decision = check(gate, &policy, &key, cost).await;
                assert_eq!(retry_after(&decision), Some(ms(100)));
            }
            clock.advance(ms(100));
        }
    }
}

pub async fn hostile_keys_never_meet(gate: &Limiter, _: ManualClock) {
    let policy = policy("p", "1/1h");
    let long = vec![b'x'; 65_536];
    let plain: [(&'static str, &[u8]); 20] = [
        ("a", b""),
        ("", b"a"),
        ("a:b", b"c"),
        ("a", b"b:c"),
        ("a", b"b=c"),
        ("a=b", b"c"),
        ("a", b"bc"),
        ("ab", b"c"),
        ("a", b"{b}"),
        ("a", b"b}"),
        ("a", b"}{"),
        ("a", b"b:p"),
        ("a", b"\0"),
        ("a", b"\0\0"),
        ("a", b"\xff"),
        ("a", b"\xff\xfe"),
        ("a", "\u{fffd}".as_bytes()),
        ("a", b"b\r\n"),
        ("a", &long),
        ("a", &long[1..]),
    ];
    for (kind, value) in plain {
        for key in [Key::new(kind, value), Key::secret(kind, value)] {
            let charge = || [Charge::new(&policy, key.clone(), 1)];
            let met = format!("{kind:?} {:?}", &value[..value.len().min(8)]);
            assert!(gate.check(charge()).await.unwrap().is_allowed(), "{met}");
            assert!(!gate.check(charge()).await.unwrap().is_allowed(), "{met}");
        }
    }
}

pub async fn the_clock_may_show_the_epoch_or_its_latest_time(gate: &Limiter, clock: ManualClock) {
    for (key, now_ms) in [("first", 0), ("last", u64::MAX)] {
        clock.set(now_ms);
        let now_ms = clock.now_ms();
        for window in ["1ms", "1s@exact", "36525d@1d", "1d@fixed"] {
            let policy = policy(window.split('@').next().unwrap(), &format!("2/{window}"));
            assert!(admits(gate, &policy, key, 2).await);
            let decision = check(gate, &policy, key, 1).await;
            let step = millis(policy.rules()[0].step());
            let hold = millis(policy.rules()[0].window());
            let end = now_ms - now_ms % step + step;
            let release = if window.ends_with("fixed") {
                end
            } else {
                end + hold
            };
            assert_eq!(
                retry_after(&decision),
                Some(ms(release - now_ms)),
                "{window}"
            );
        }
    }
}

pub async fn the_largest_check_is_decided_and_settled(gate: &Limiter, _: ManualClock) {
    let rules = (1..=16).map(|minutes| format!("{}/{minutes}m", minutes + 1));
    let policy = policy("p", &rules.collect::<Vec<_>>().join(","));
    let charge = |key: u32, cost| Charge::new(&policy, user(&key.to_string()), cost);
    let charges = |cost| (0..64).map(move |key| charge(key, cost));
    let decision = gate.check(charges(2)).await.unwrap();
    let left: Vec<u64> = (0..16).collect();
    assert_eq!(remaining(decision.usage()), left.repeat(64));
    assert!(!gate.check(charges(1)).await.unwrap().is_allowed());
    let settled = gate.settle(decision.usage(), |_| 1).await.unwrap();
    let left: Vec<u64> = (1..=16).collect();
    assert_eq!(remaining(&settled), left.repeat(64));
    assert!(gate.check(charges(1)).await.unwrap().is_allowed());
}

pub async fn exactly_the_limit_is_admitted_under_concurrency(gate: &Limiter, _: ManualClock) {
    let policy = policy("p", "1000/1h,500/1d");
    let admitted = by_64_tasks(gate, move |_| vec![Charge::new(&policy, user("alice"), 1)]);
    assert_eq!(admitted.await, 500);
}

pub async fn a_check_over_many_keys_is_atomic_under_concurrency(gate: &Limiter, _: ManualClock) {
    let (policy, shared) = (policy("own", "12/1h"), policy("shared", "500/1h"));
    // Different orders of the keys, and one key that all tasks share.
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let (own, all) = (policy.clone(), shared.clone());
    let admitted = by_64_tasks(gate, move |task| {
        let mut charges = vec![Charge::new(&all, user("all"), 1)];
        charges.extend(names.map(|name| Charge::new(&own, user(name), 1)));
        if task % 2 == 0 {
            charges.reverse();
        }
        charges
    });
    assert_eq!(admitted.await, 12);
    assert_eq!(left(gate, &shared, "all").await, 500 - 12);
    for name in names {
        assert_eq!(left(gate, &policy, name).await, 0);
    }
}

/// The number of admitted checks of 64 tasks that make 40 each.
async fn by_64_tasks(
    gate: &Limiter,
    charges: impl Fn(usize) -> Vec<Charge> + Send + Sync + 'static,
) -> usize {
    let charges = Arc::new(charges);
    let tasks: Vec<_> = (0..64)
        .map(|task| {
            let (gate, charges) = (gate.clone(), Arc::clone(&charges));
            tokio::spawn(async move {
                let mut admitted = 0;
                for _ in 0..40 {
                    let decision = gate.check(charges(task)).await.unwrap();
                    admitted += usize::from(decision.is_allowed());
                    yield_now().await;
                }
                admitted
            })
        })
        .collect();
    let mut sum = 0;
    for task in tasks {
        sum += task.await.unwrap();
    }
    sum
}
