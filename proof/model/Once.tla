-------------------------------- MODULE Once --------------------------------
(* A stored message's life: delivered, claimed, leased, handled, finished; and what may go wrong with it:
   processes die, leases lapse under handlers that live on, brokers deliver again, rows are purged and
   redriven. The three constants are the guards; the proof shows that each of them is needed. *)
EXTENDS Integers, FiniteSets, TLC

CONSTANTS Workers, Messages, Nobody,
          Copies,      \* how often a broker may deliver each message
          Crashes,     \* how many processes may die
          Leases,      \* how often one message may be leased, which bounds the model
          Horizon,     \* hours after the end in which a broker may still deliver it again
          Retention,   \* hours after the end for which its ledger row is kept
          Token,       \* a lease is finished only by the token it was given out with
          AckLast      \* a delivery is acked after the commit, not before

VARIABLES copies,      \* deliveries that the broker still owes, by message
          acked,       \* messages that were acked at least once
          ledger,      \* messages that are known
          queue,       \* "none", "due" or "leased", by message
          lapsed,      \* messages whose lease has run out
          token,       \* the latest token given out, by message
          dead,        \* messages that lie among the dead
          redriven,    \* messages that a person has sent again
          effects,     \* how often each took effect
          age,         \* hours since a message ended
          pc, has, ticket,   \* what each worker is about to do, with which message, under which token
          crashes

vars == <<copies, acked, ledger, queue, lapsed, token, dead, redriven, effects, age, pc, has, ticket, crashes>>

Ended(m) == m \in ledger /\ queue[m] = "none" /\ m \notin dead

Init ==
    /\ copies = [m \in Messages |-> Copies] /\ acked = {} /\ ledger = {} /\ lapsed = {} /\ dead = {}
    /\ queue = [m \in Messages |-> "none"] /\ token = [m \in Messages |-> 0] /\ redriven = {}
    /\ effects = [m \in Messages |-> 0] /\ age = [m \in Messages |-> 0]
    /\ pc = [w \in Workers |-> "idle"] /\ has = [w \in Workers |-> Nobody] /\ ticket = [w \in Workers |-> 0]
    /\ crashes = 0

Become(w, what, m) == pc' = [pc EXCEPT ![w] = what] /\ has' = [has EXCEPT ![w] = m]
Rest(w) == Become(w, "idle", Nobody) /\ ticket' = [ticket EXCEPT ![w] = 0]

\* A broker may deliver the same message to several at once.
Receive(w, m) ==
    /\ pc[w] = "idle" /\ copies[m] > 0
    /\ Become(w, IF AckLast THEN "storing" ELSE "acking", m)
    /\ UNCHANGED <<copies, acked, ledger, queue, lapsed, token, dead, redriven, effects, age, ticket, crashes>>

\* One statement: the ledger row and the queue row, or neither.
Claim(w) ==
    /\ pc[w] = "storing"
    /\ LET m == has[w] IN
        /\ ledger' = ledger \union {m}
        /\ queue' = IF m \in ledger THEN queue ELSE [queue EXCEPT ![m] = "due"]
        /\ age' = IF m \in ledger THEN age ELSE [age EXCEPT ![m] = 0]
        /\ IF AckLast THEN Become(w, "acking", m) /\ UNCHANGED ticket ELSE Rest(w)
    /\ UNCHANGED <<copies, acked, lapsed, token, dead, redriven, effects, crashes>>

Ack(w) ==
    /\ pc[w] = "acking"
    /\ LET m == has[w] IN
        /\ copies' = [copies EXCEPT ![m] = IF @ > 0 THEN @ - 1 ELSE 0]
        /\ acked' = acked \union {m}
        /\ IF AckLast THEN Rest(w) ELSE Become(w, "storing", m) /\ UNCHANGED ticket
    /\ UNCHANGED <<ledger, queue, lapsed, token, dead, redriven, effects, age, crashes>>

\* Taking what is due, or reclaiming what a lapsed lease has left behind.
Lease(w, m) ==
    /\ pc[w] = "idle" /\ (queue[m] = "due" \/ (queue[m] = "leased" /\ m \in lapsed)) /\ token[m] < Leases
    /\ queue' = [queue EXCEPT ![m] = "leased"] /\ lapsed' = lapsed \ {m}
    /\ token' = [token EXCEPT ![m] = @ + 1] /\ ticket' = [ticket EXCEPT ![w] = token[m] + 1]
    /\ Become(w, "handling", m)
    /\ UNCHANGED <<copies, acked, ledger, dead, redriven, effects, age, crashes>>

Lapse(m) ==
    /\ queue[m] = "leased" /\ m \notin lapsed /\ lapsed' = lapsed \union {m}
    /\ UNCHANGED <<copies, acked, ledger, queue, token, dead, redriven, effects, age, pc, has, ticket, crashes>>

IsOurs(w) == ~Token \/ (queue[has[w]] = "leased" /\ token[has[w]] = ticket[w])

\* Effects, queue row and token check in one transaction; without the token nothing stops a late one.
Finish(w) ==
    /\ pc[w] = "handling"
    /\ LET m == has[w] IN
        IF IsOurs(w)
        THEN /\ effects' = [effects EXCEPT ![m] = @ + 1]
             /\ queue' = [queue EXCEPT ![m] = "none"] /\ lapsed' = lapsed \ {m}
             /\ age' = [age EXCEPT ![m] = 0]
        ELSE UNCHANGED <<effects, queue, lapsed, age>>
    /\ Rest(w)
    /\ UNCHANGED <<copies, acked, ledger, token, dead, redriven, crashes>>

\* The handler fails for good: nothing of it stays, and the message lies among the dead.
Fail(w) ==
    /\ pc[w] = "handling"
    /\ LET m == has[w] IN
        IF queue[m] = "leased" /\ token[m] = ticket[w]
        THEN /\ dead' = dead \union {m} /\ queue' = [queue EXCEPT ![m] = "none"] /\ lapsed' = lapsed \ {m}
        ELSE UNCHANGED <<dead, queue, lapsed>>
    /\ Rest(w)
    /\ UNCHANGED <<copies, acked, ledger, token, redriven, effects, age, crashes>>

Redrive(m) ==
    /\ m \in dead /\ m \notin redriven
    /\ dead' = dead \ {m} /\ redriven' = redriven \union {m} /\ queue' = [queue EXCEPT ![m] = "due"]
    /\ UNCHANGED <<copies, acked, ledger, lapsed, token, effects, age, pc, has, ticket, crashes>>

\* An hour passes after the end. A broker gives up at its horizon, and what is still on its way to a
\* ledger then counts as not yet given up.
Tick(m) ==
    /\ Ended(m) /\ age[m] <= Horizon
    /\ age[m] = Horizon => \A w \in Workers : ~(has[w] = m /\ pc[w] = "storing")
    /\ age' = [age EXCEPT ![m] = @ + 1]
    /\ copies' = IF age[m] = Horizon THEN [copies EXCEPT ![m] = 0] ELSE copies
    /\ UNCHANGED <<acked, ledger, queue, lapsed, token, dead, redriven, effects, pc, has, ticket, crashes>>

\* Only what has ended, and only when no broker can deliver it again.
Purge(m) ==
    /\ Ended(m) /\ age[m] > Retention /\ ledger' = ledger \ {m}
    /\ UNCHANGED <<copies, acked, queue, lapsed, token, dead, redriven, effects, age, pc, has, ticket, crashes>>

Crash(w) ==
    /\ pc[w] # "idle" /\ crashes < Crashes /\ crashes' = crashes + 1 /\ Rest(w)
    /\ UNCHANGED <<copies, acked, ledger, queue, lapsed, token, dead, redriven, effects, age>>

Next ==
    \/ \E w \in Workers : Claim(w) \/ Ack(w) \/ Finish(w) \/ Fail(w) \/ Crash(w)
    \/ \E w \in Workers, m \in Messages : Receive(w, m) \/ Lease(w, m)
    \/ \E m \in Messages : Lapse(m) \/ Redrive(m) \/ Tick(m) \/ Purge(m)

Spec == Init /\ [][Next]_vars

Once == \A m \in Messages : effects[m] <= 1
NothingAckedIsLost ==
    \A m \in acked : \/ effects[m] > 0 \/ queue[m] # "none" \/ m \in dead
                     \/ \E w \in Workers : has[w] = m /\ pc[w] = "storing"
DoneMeansEffect == \A m \in Messages : Ended(m) => effects[m] = 1
WaitingMeansKnown == \A m \in Messages : (queue[m] # "none" \/ m \in dead) => m \in ledger
EffectsMeanDone == \A m \in Messages : effects[m] > 0 => queue[m] = "none" /\ m \notin dead

Same == Permutations(Workers) \union Permutations(Messages)
=============================================================================
