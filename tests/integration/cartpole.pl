# CartPole in Perl, written from docs/reference/environment_protocol.md alone, over a WebSocket, without any package:
#   perl cartpole.pl ws://HOST:PORT/ NAME N_ENVS SEED EPISODES
use strict;
use warnings;
use Errno qw(EINTR);
use IO::Socket::INET;
use MIME::Base64 qw(encode_base64);
use Time::HiRes qw(sleep);
use constant { RUNNING => 1, TERMINATED => 2, INTERRUPTED => 3, FALLEN => 12 * atan2(0, -1) / 180 };

my ($address, $name, $n_envs, $seed, $episodes) = @ARGV;
my ($host, $port) = $address =~ m{^ws://([^:/]+):(\d+)} or die "expected ws://HOST:PORT, not $address\n";

# -- protobuf --

sub varint {
    my ($n) = @_;
    my $bytes = "";
    for (; $n > 127; $n >>= 7) { $bytes .= chr($n & 127 | 128) }
    return $bytes . chr $n;
}
sub whole { my ($number, $bytes) = @_; varint($number * 8 + 2) . varint(length $bytes) . $bytes }
sub integer { my ($number, $n) = @_; varint($number * 8) . varint($n) }
sub double { my ($number, $value) = @_; varint($number * 8 + 1) . pack "d<", $value }

# Takes a varint from the front of some bytes.
sub take_varint {
    my ($n, $shift) = (0, 0);
    while ($_[0] =~ s/^(.)//s) {
        $n |= (ord($1) & 127) << $shift;
        last if ord $1 < 128;
        $shift += 7;
    }
    return $n;
}

# The fields of a message, by number: a list of values each.
sub fields {
    my ($bytes) = @_;
    my %found;
    while (length $bytes) {
        my $key = take_varint($bytes);
        my $type = $key & 7;
        my $value = $type == 1 ? substr $bytes, 0, 8, "" : take_varint($bytes);
        $value = substr $bytes, 0, $value, "" if $type == 2;
        push @{ $found{ $key >> 3 } }, $value;
    }
    return \%found;
}

sub integers { my ($bytes) = @_; my @n; push @n, take_varint($bytes) while length $bytes; @n }

# -- the WebSocket (RFC 6455) --

my $socket;

sub read_bytes {
    my ($length) = @_;
    my $bytes = "";
    while (length $bytes < $length) {
        my $n = sysread $socket, $bytes, $length - length $bytes, length $bytes;
        next if !defined $n && $! == EINTR;
        return undef unless $n;
    }
    return $bytes;
}

sub send_frame {
    my ($opcode, $bytes) = @_;
    my $length = length $bytes;
    my $head = $length < 126 ? chr(128 | $length) : $length < 65536 ? pack "Cn", 254, $length : pack "CQ>", 255, $length;
    my $mask = pack "N", int rand 2**32;
    my $masked = $bytes ^ substr $mask x (1 + $length / 4), 0, $length;
    local $SIG{PIPE} = "IGNORE";
    syswrite $socket, chr(128 | $opcode) . $head . $mask . $masked;
}

sub dial {
    $socket = IO::Socket::INET->new(PeerAddr => $host, PeerPort => $port, Proto => "tcp") or return 0;
    my $key = encode_base64(join("", map { chr int rand 256 } 1 .. 16), "");
    my $token = $ENV{ROLLCAST_TOKEN} ? "Authorization: Bearer $ENV{ROLLCAST_TOKEN}\r\n" : "";
    print $socket "GET / HTTP/1.1\r\nHost: $host:$port\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        . "Sec-WebSocket-Key: $key\r\nSec-WebSocket-Version: 13\r\n$token\r\n";
    $socket->flush;
    my $answer = "";
    until ($answer =~ /\r\n\r\n$/) { my $byte = read_bytes(1); return 0 unless defined $byte; $answer .= $byte }
    return $answer =~ m{^HTTP/1.1 101 };
}

# The next message of the server, or nothing and why there is none: "" if the end is a good one.
sub receive {
    my $refusal;
    while (1) {
        my $head = read_bytes(2) // return (undef, $refusal // "UNAVAILABLE: no connection to $host:$port");
        my ($opcode, $length) = (ord($head) & 15, ord(substr $head, 1) & 127);
        $length = unpack "n", read_bytes(2) // return (undef, "UNAVAILABLE: the connection broke") if $length == 126;
        $length = unpack "Q>", read_bytes(8) // return (undef, "UNAVAILABLE: the connection broke") if $length == 127;
        my $bytes = read_bytes($length) // return (undef, "UNAVAILABLE: the connection broke");
        if    ($opcode == 2) { return ($bytes, "") }
        elsif ($opcode == 1) { $refusal = $bytes }
        elsif ($opcode == 9) { send_frame(10, $bytes) }
        elsif ($opcode == 8) {
            send_frame(8, $bytes);
            my $code = $length >= 2 ? unpack "n", $bytes : 0;
            return (undef, $code == 1000 ? "" : $refusal // "UNAVAILABLE: closed with $code");
        }
    }
}

# -- CartPole --

my ($inf, @poles) = (9**9**9);
my @bound = (4.8, $inf, 2 * FALLEN, $inf);
sub bound { my ($sign) = @_; integer(1, 8) . integer(2, 4) . whole(3, pack "f<4", map { $sign * $_ } @bound) }
my $box = whole(1, whole(1, bound(-1)) . whole(2, bound(1)) . integer(3, 4));
my $spaces = whole(1, "0") . whole(2, $box) . whole(3, whole(2, integer(1, 2)));

sub turn {
    my ($number, $state, $reward) = @_;
    my @s = @{ $poles[$number] }{qw(position speed angle spin)};
    my $agent = integer(3, $state) . whole(4, pack "f<4", @s) . double(5, $reward);
    my $values = $state == RUNNING ? "" : whole(3, whole(1, "final_position") . double(2, $s[0]));
    return whole(1, integer(1, $number) . whole(2, $agent) . $values);
}

sub uniform { my ($pole) = @_; $pole->{random} = ($pole->{random} * 1103515245 + 12345) % 2**31; $pole->{random} / 2**31 }

sub begin {
    my ($number) = @_;
    my $pole = $poles[$number];
    $pole->{$_} = 0.1 * uniform($pole) - 0.05 for qw(position speed angle spin);
    $pole->{steps} = 0;
    return turn($number, RUNNING, 0);
}

sub step {
    my ($number, $action) = @_;
    my $pole = $poles[$number];
    my ($sine, $cosine) = (sin $pole->{angle}, cos $pole->{angle});
    my $push = (($action ? 10 : -10) + 0.05 * $pole->{spin}**2 * $sine) / 1.1;
    my $turned = (9.8 * $sine - $cosine * $push) / (0.5 * (4 / 3 - 0.1 * $cosine**2 / 1.1));
    my $drive = $push - 0.05 * $turned * $cosine / 1.1;
    $pole->{position} += 0.02 * $pole->{speed};
    $pole->{speed}    += 0.02 * $drive;
    $pole->{angle}    += 0.02 * $pole->{spin};
    $pole->{spin}     += 0.02 * $turned;
    my $fallen = abs $pole->{position} > 2.4 || abs $pole->{angle} > FALLEN;
    return $fallen ? TERMINATED : ++$pole->{steps} == 500 ? INTERRUPTED : RUNNING;
}

# -- a stream, and the next one --

my ($n_ended, $pause_s, $has_played, $is_over, $max_bytes) = (0, 0.5, 0, 0, 0);

# Sends turns in messages of at most $max_bytes.
sub send_turns {
    my $message = "";
    for my $turn (@_) {
        if ($message ne "" && length($message) + length($turn) + 10 > $max_bytes) {
            send_frame(2, whole(2, $message));
            $message = "";
        }
        $message .= $turn;
    }
    send_frame(2, whole(2, $message)) if $message ne "";
}

# Plays one stream; returns why it ended.
sub play {
    return "UNAVAILABLE: no connection to $host:$port" unless dial();
    send_frame(2, whole(1, integer(1, 1) . whole(2, $name) . whole(3, $spaces) . integer(4, $n_envs)));
    while (1) {
        my ($message, $why) = receive();
        if (!defined $message) {
            $is_over = 1 unless $why;
            return $why || "$n_ended episodes played";
        }
        my $response = fields($message);
        my @turns;
        if (my $farewell = $response->{3}) {
            my $said = fields($farewell->[0]);
            $is_over = $said->{2} ? 1 : 0;
            return $said->{1}[0] // "";
        }
        if (my $welcome = $response->{1}) {
            my $said = fields($welcome->[0]);
            ($name, $max_bytes) = ($said->{1}[0], $said->{3}[0]);
            my @seeds = map { integers($_) } @{ $said->{2} // [] };
            for my $number (0 .. $n_envs - 1) {
                my $own = $seed ? $seed + $number : $seeds[$number];
                $poles[$number] = { random => ($own ^ $own >> 31) % 2**31 };
                uniform($poles[$number]) for 1 .. 8;
                push @turns, begin($number);
            }
        }
        elsif (!$is_over) {
            ($has_played, $pause_s) = (1, 0.5);
            for my $each (@{ fields($response->{2}[0])->{1} }) {
                my $actions = fields($each);
                my $number = $actions->{1} ? $actions->{1}[0] : 0;
                my $state = step($number, unpack "q<", fields($actions->{2}[0])->{3}[0]);
                push @turns, turn($number, $state, 1);
                next if $state == RUNNING;
                $n_ended++;
                push @turns, begin($number);
            }
        }
        send_turns(@turns);
        if ($episodes && $n_ended >= $episodes && !$is_over) {
            $is_over = 1;
            send_frame(8, pack "n", 1000);
        }
    }
}

my $n_name_taken = 0;
while (1) {
    my $why = play();
    if ($is_over) { print "$why\n"; exit 0 }
    my $may_be_ours = $why =~ /^ALREADY_EXISTS: / && (++$n_name_taken < 6 || $has_played);
    if ($why =~ /^[A-Z_]+: / && $why !~ /^UNAVAILABLE: / && !$may_be_ours) {
        print STDERR "$why\n";
        exit 1;
    }
    print STDERR "$why; trying again within $pause_s s\n";
    sleep $pause_s * (0.5 + rand() / 2);
    $pause_s = $pause_s < 15 ? 2 * $pause_s : 30;
}
