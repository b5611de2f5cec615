# frozen_string_literal: true

require "rbconfig"
require "socket"

module Tracepoint
  # What answers a tracer from inside the process: a socket, and behind it the
  # commands of docs/agent.md. The method hook is agent.c's.
  #
  # One file, since it is also put into processes that never asked for it; of
  # Ruby's own libraries only "socket" is loaded, which is no gem (a gem that is
  # loaded here could be the wrong one for the program's Bundler).
  module Agent
    PROTOCOL = 1
    MAGIC = "rbtrace-agent"

    # A request that cannot be done; code and details as docs/agent.md has them.
    class Refusal < StandardError
      attr_reader :code, :details

      def initialize(code, message, details = {})
        super(message)
        @code = code
        @details = details
      end

      def to_reply
        { code: code, message: message }.merge(details)
      end
    end

    # What cannot be answered by staying connected.
    class Broken < Refusal
      def initialize(message, code = "protocol")
        super(code, message)
      end
    end

    # The other end is gone.
    class Gone < StandardError; end

    # Values as bytes: docs/agent.md, "Values".
    module Values
      DEPTH = 16

      module_function

      def encode(value, out = String.new(encoding: Encoding::BINARY))
        case value
        when nil then out << "n"
        when true then out << "t"
        when false then out << "f"
        when Integer then encode_integer(value, out)
        when Float then out << "d" << [value].pack("E")
        when String then encode_string(value, out)
        when Symbol then encode_string(value.to_s, out)
        when Array
          out << "a" << [value.size].pack("V")
          value.each { |item| encode(item, out) }
        when Hash then encode_map(value, out)
        else encode_string(value.to_s, out)
        end
        out
      end

      def encode_integer(value, out)
        return encode_string(value.to_s, out) unless value.between?(-(1 << 63), (1 << 63) - 1)

        out << "i" << [value].pack("q<")
      end

      def encode_string(value, out)
        tag = value.encoding == Encoding::BINARY && !value.ascii_only? ? "b" : "s"
        bytes = tag == "b" ? value : text(value)
        out << tag << [bytes.bytesize].pack("V") << bytes.b
      end

      def encode_map(value, out)
        out << "m" << [value.size].pack("V")
        value.each do |key, item|
          name = text(key.to_s)
          out << [name.bytesize].pack("V") << name.b
          encode(item, out)
        end
      end

      # Valid UTF-8, whatever it was.
      def text(string)
        string = string.encode(Encoding::UTF_8, invalid: :replace, undef: :replace, replace: "\uFFFD") unless
          [Encoding::UTF_8, Encoding::BINARY, Encoding::US_ASCII].include?(string.encoding)
        utf8(string)
      rescue EncodingError
        utf8(string)
      end

      def utf8(string)
        string.dup.force_encoding(Encoding::UTF_8).scrub("\uFFFD")
      end

      # @raise [Broken] if it is not exactly one map
      def decode_map(bytes)
        reader = Reader.new(bytes)
        value = reader.value(0)
        raise Broken, "not a map" unless value.is_a?(Hash)
        raise Broken, "bytes behind the map" unless reader.done?

        value
      end

      # Reads what may be anything.
      class Reader
        def initialize(bytes)
          @bytes = bytes
          @at = 0
        end

        def done?
          @at == @bytes.bytesize
        end

        def value(depth)
          raise Broken, "too deep" if depth > DEPTH

          case take(1)
          when "n" then nil
          when "t" then true
          when "f" then false
          when "i" then take(8).unpack1("q<")
          when "d" then take(8).unpack1("E")
          when "s" then text
          when "b" then take(length)
          when "a" then Array.new(number) { value(depth + 1) }
          when "m" then map(depth)
          else raise Broken, "no such tag"
          end
        end

        private

        def map(depth)
          pairs = {}
          number.times do
            key = text
            raise Broken, "a key twice" if pairs.key?(key)

            pairs[key] = value(depth + 1)
          end
          pairs
        end

        def text
          string = take(length).force_encoding(Encoding::UTF_8)
          raise Broken, "text is not UTF-8" unless string.valid_encoding?

          string
        end

        def length
          take(4).unpack1("V")
        end

        # Of things that take a byte each at least.
        def number
          count = length
          raise Broken, "more than there is" if count > @bytes.bytesize - @at

          count
        end

        def take(size)
          raise Broken, "cut short" if size > @bytes.bytesize - @at

          @at += size
          @bytes.byteslice(@at - size, size)
        end
      end
    end

    # Frames on a socket, one connection's: docs/agent.md, "Frames".
    class Wire
      REQUEST = 1
      DATA = 2
      REPLY = 3
      ERROR = 4
      EVENT = 5
      CANCEL = 6
      HEAD = 12
      MAX_PAYLOAD = 65_536
      MAX_REQUEST = 16 << 20
      FRAME_SECONDS = 10
      Frame = Struct.new(:type, :flags, :request, :payload)

      attr_reader :socket

      def initialize(socket)
        @socket = socket
        @lock = Mutex.new
        # Of a frame that had begun when its time was over: it comes before any other.
        @rest = "".b
      end

      # The next frame; waits for its beginning until the deadline, if any.
      # @raise [Gone, Broken]
      def read(deadline = nil)
        first = read_some(HEAD, deadline)
        ends = now + FRAME_SECONDS
        first << read_exactly(HEAD - first.bytesize, ends)
        length, type, flags, zero, request = first.unpack("VCCvV")
        check(length, type, flags, zero)
        Frame.new(type, flags, request, read_exactly(length, ends))
      end

      def reply(request, map, type = REPLY)
        body = Values.encode(map)
        @lock.synchronize do
          if body.bytesize <= MAX_PAYLOAD
            write(type, 0, request, body)
          else
            write_chunks(0, request, body)
            write(type, 1, request, "")
          end
        end
      end

      # A reply that brings open files.
      def reply_with(request, map, files)
        frame = head(REPLY, 0, request, Values.encode(map))
        @lock.synchronize do
          send_whole("".b)
          sent = @socket.sendmsg(frame, 0, nil, Socket::AncillaryData.unix_rights(*files))
          @socket.write(frame.byteslice(sent..-1)) if sent < frame.bytesize
        end
      rescue SystemCallError, IOError
        raise Gone
      end

      # @return [Boolean] false: not all of it was written by the deadline
      def data(request, channel, bytes, deadline)
        @lock.synchronize { chunks(channel, request, bytes).all? { |frame| write_until(frame, deadline) } }
      rescue SystemCallError, IOError
        raise Gone
      end

      # An event, unless that would take longer than the deadline. The process
      # ends, and the thread that writes otherwise may be stuck: no frame is
      # begun that cannot be whole.
      def last_words(map, deadline)
        sleep 0.005 until (locked = @lock.try_lock) || now > deadline
        return unless locked

        body = Values.encode(map)
        frames = body.bytesize <= MAX_PAYLOAD ? [head(EVENT, 0, 0, body)] : chunks(0, 0, body) << head(EVENT, 1, 0, "")
        frames.each { |frame| return nil unless write_until(frame, deadline) }
      rescue SystemCallError, IOError
        nil
      end

      private

      def now
        Process.clock_gettime(Process::CLOCK_MONOTONIC)
      end

      def check(length, type, flags, zero)
        raise Broken, "no such frame" unless [REQUEST, DATA, CANCEL].include?(type) && zero.zero?
        raise Broken, "frame too long" if length > MAX_PAYLOAD
        raise Broken, "no such flags" if flags > (type == REQUEST ? 1 : 0)
        raise Broken, "a payload where none is" if length.positive? && (type == CANCEL || flags == 1)
      end

      def read_exactly(size, deadline)
        bytes = String.new(encoding: Encoding::BINARY)
        bytes << read_some(size - bytes.bytesize, deadline) while bytes.bytesize < size
        bytes
      end

      def read_some(size, deadline)
        loop do
          bytes = @socket.read_nonblock(size, exception: false)
          raise Gone if bytes.nil?
          return bytes unless bytes == :wait_readable

          left = deadline && (deadline - now)
          raise Broken, "too slow" if left && (left <= 0 || !IO.select([@socket], nil, nil, left))

          IO.select([@socket]) unless left
        end
      rescue SystemCallError, IOError
        raise Gone
      end

      def head(type, flags, request, payload)
        [payload.bytesize, type, flags, 0, request].pack("VCCvV") << payload
      end

      def chunks(channel, request, bytes)
        (0...bytes.bytesize).step(MAX_PAYLOAD).map { |at| head(DATA, channel, request, bytes.byteslice(at, MAX_PAYLOAD)) }
      end

      def write(type, flags, request, payload)
        send_whole(head(type, flags, request, payload))
      rescue SystemCallError, IOError
        raise Gone
      end

      def write_chunks(channel, request, bytes)
        (0...bytes.bytesize).step(MAX_PAYLOAD) { |at| write(DATA, channel, request, bytes.byteslice(at, MAX_PAYLOAD)) }
      end

      def send_whole(frame)
        rest = @rest
        @rest = "".b
        @socket.write(rest << frame)
      end

      # What is not written by then goes before the next frame.
      def write_until(frame, deadline)
        @rest << frame
        until @rest.empty?
          written = @socket.write_nonblock(@rest, exception: false)
          if written == :wait_writable
            left = deadline - now
            return false if left <= 0 || !IO.select(nil, [@socket], nil, left)
          else
            @rest = @rest.byteslice(written..-1)
          end
        end
        true
      end
    end

    # Where the socket is: docs/agent.md, "The socket's place".
    module Place
      NAME = /\A(\d+)-(\d+)\.sock\z/.freeze
      MOST_CLEANED = 256

      module_function

      def name
        "#{Process.pid}-#{started("self")}.sock"
      end

      # Field 22 of stat; the second, the program's name, may have anything in it.
      def started(pid)
        File.read("/proc/#{pid}/stat").rpartition(")").last.split[19].to_i
      rescue SystemCallError
        0
      end

      def directories
        asked = ENV["TRACEPOINT_AGENT_DIR"].to_s
        return [asked] unless asked.empty?

        %w[/tmp /dev/shm].map { |base| File.join(base, "rbtrace-agent-#{Process.euid}") }
      end

      # @return [Array(UNIXServer, String), nil]
      def bind
        directories.each do |directory|
          next unless ours?(directory)

          clean(directory)
          path = File.join(directory, name)
          File.unlink(path) if File.symlink?(path) || File.exist?(path)
          server = UNIXServer.new(path)
          File.chmod(0o600, path)
          return [server, path]
        rescue SystemCallError, ArgumentError # a path too long
          next
        end
        nil
      end

      # Nobody else can have made it so that this is true.
      def ours?(directory)
        begin
          Dir.mkdir(directory, 0o700)
        rescue Errno::EEXIST
          nil
        end
        stat = File.lstat(directory)
        stat.directory? && stat.uid == Process.euid && (stat.mode & 0o077).zero?
      end

      # Of agents that could not do it themselves.
      def clean(directory)
        Dir.children(directory).first(MOST_CLEANED).each do |name|
          found = NAME.match(name) or next
          next if started(found[1]) == found[2].to_i && File.exist?("/proc/#{found[1]}")

          path = File.join(directory, name)
          File.unlink(path) if deserted?(path)
        rescue SystemCallError
          next
        end
      end

      # It may be of a process in another pid namespace: only asking tells.
      def deserted?(path)
        socket = Socket.new(:UNIX, :STREAM)
        socket.connect_nonblock(Socket.sockaddr_un(path), exception: false)
        false
      rescue Errno::ECONNREFUSED
        true
      ensure
        socket&.close
      end
    end

    # The names of what the hook saw, without calling a method of the program.
    module Names
      MODULE_NAME = Module.instance_method(:name)
      MODULE_METHOD = Module.instance_method(:instance_method)
      OBJECT_ID = Object.instance_method(:to_s)
      OBJECT_CLASS = Kernel.instance_method(:class)

      module_function

      def of(from, count)
        (from...from + count).lazy.map { |index| entry(index) }.take_while { |found| found }.to_a
      end

      def entry(index)
        return { index: 0, kind: 0, owner: nil, singleton: false, name: nil, path: nil, line: nil } if index.zero?

        kind, owner, name, definer = Native.method_at(index)
        return nil unless kind

        text, singleton = owner ? owner_text(owner) : [nil, false]
        path, line = kind == 1 ? place(definer, name) : nil
        { index: index, kind: kind, owner: text, singleton: singleton, name: name ? name.to_s : nil, path: path, line: line }
      end

      def owner_text(owner)
        attached = Native.attached(owner)
        return [module_text(attached), true] if module?(attached)
        return ["#<#{module_text(OBJECT_CLASS.bind_call(attached))}:0x…>", true] if attached

        [module_text(owner), false]
      end

      def module_text(found)
        MODULE_NAME.bind_call(found) || refinement_text(found) || OBJECT_ID.bind_call(found)
      end

      def refinement_text(found)
        refined, place = Native.refinement(found)
        refined && place && "#<refinement:#{module_text(refined)}@#{module_text(place)}>"
      end

      def module?(value)
        Module === value
      end

      def place(owner, name)
        MODULE_METHOD.bind_call(owner, name).source_location
      rescue NameError, TypeError # removed since
        nil
      end
    end

    # What is armed, at most one thing in a process: docs/agent.md, "Arming".
    class Arming
      MODES = { "empty" => 0, "ring" => 1, "table" => 2, "slow" => 3, "sites" => 4 }.freeze
      FLAGS = { "methods" => 1, "c_calls" => 2, "gc" => 4, "raise" => 8, "objects" => 16, "sites" => 32,
                "cpu" => 64, "whole" => 128 }.freeze
      SELECT = 256
      HISTOGRAMS = 512
      LIMITS = { "max_methods" => [16_384, 16, 1 << 20], "max_blocks" => [65_536, 16, 1 << 20],
                 "max_streams" => [128, 1, 4096], "ring_records" => [262_144, 256, 1 << 24] }.freeze
      OFFSETS = %w[cfp_ep me_owner me_def def_original_id ment_imemo svar_imemo local_flag ec_thread].freeze
      ALIGNED = %w[cfp_ep me_owner me_def def_original_id ec_thread].freeze
      KINDS = { nil => 0, "instance" => 1, "singleton" => 2 }.freeze
      SELECTOR = %w[owner kind name expressions].freeze
      COUNTERS = %i[state methods blocks streams conditions no_stream no_method too_deep orphans abandoned no_block
                    no_values].freeze
      CALIBRATION_NS = 20_000_000
      ARGUMENTS = [*FLAGS.keys, *LIMITS.keys, "mode", "threshold_ns", "select", "histograms", "offsets", "limit_ms"].freeze
      WITH_VALUES = [1, 3].freeze # ring, slow

      def self.status
        COUNTERS.zip(Native.counters).to_h.merge(Clock.pair)
      end

      def initialize(arguments)
        @arguments = arguments
        @mode = MODES[arguments["mode"]] or refuse("mode")
        @programs = []
        @selectors = selectors
        @limit_ms = number("limit_ms", 100, 1, 60_000)
      end

      # @return [Hash, Array<IO>] what to reply, and the files to send with it
      def call
        packed = pack
        Expressions.use(@programs, @limit_ms) if @programs.any?
        data, control, size, control_size, sealed = armed(packed)
        watch([data, control]) if @programs.any?
        reply = { size: size, control_size: control_size, sealed: sealed == 1, ractors: Facts.ractors, overhead: overhead }
        [reply, [data, control]]
      end

      private

      # Without who ends them no expression is evaluated.
      def watch(files)
        Expressions.watch
      rescue ThreadError => e
        Native.release
        files.each(&:close)
        raise Refusal.new("system", e.message)
      end

      # If the thread is killed then, nobody would close what is no IO yet.
      def armed(packed)
        Thread.handle_interrupt(Object => :never) do
          answer = Native.arm(packed)
          raise Refusal.new("system", SystemCallError.new(nil, answer).message, errno: answer) if answer.is_a?(Integer)

          answer.first(2).map { |fd| IO.for_fd(fd) } + answer.drop(2)
        end
      end

      def refuse(name)
        raise Refusal.new("argument", "#{name} is missing or out of range")
      end

      def pack
        limits = LIMITS.map { |name, (default, least, most)| number(name, default, least, most) }
        refuse("ring_records") if limits.last.to_s(2).count("1") != 1
        threshold = number("threshold_ns", 0, 0, 1 << 62)
        refuse("threshold_ns") if @mode == 3 && threshold.zero?
        ticks, ns = Clock.now(CALIBRATION_NS)
        [@mode, flags, Clock::KIND, Process.pid, Clock.mult(ticks, ns), *Clock::START, ticks, ns, threshold,
         @limit_ms * 1_000_000, *limits, *offsets, @selectors.size].pack("L4Q7L4L10") << @selectors.join
      end

      def number(name, default, least, most)
        value = @arguments.fetch(name, default)
        refuse(name) unless value.is_a?(Integer) && value.between?(least, most)
        value
      end

      def boolean(name, default)
        value = @arguments.fetch(name, default)
        refuse(name) unless [true, false].include?(value)
        value
      end

      def flags
        refuse("cpu") if @mode != 3 && %w[cpu whole].any? { |name| boolean(name, false) }
        FLAGS.sum { |name, bit| boolean(name, name == "methods") ? bit : 0 } |
          (@selectors.empty? ? 0 : SELECT) | (boolean("histograms", true) ? HISTOGRAMS : 0)
      end

      def offsets
        given = @arguments["offsets"]
        return [0] * (1 + OFFSETS.size) if given.nil?

        refuse("offsets") unless given.is_a?(Hash) && given.keys.sort == OFFSETS.sort
        values = given.values_at(*OFFSETS)
        refuse("offsets") unless values.all? { |value| value.is_a?(Integer) && value.between?(0, 1024) }
        refuse("offsets") unless given.values_at(*ALIGNED).all? { |value| (value % 8).zero? }
        [1, *values]
      end

      def selectors
        given = @arguments.fetch("select", nil) || []
        refuse("select") unless given.is_a?(Array) && given.size <= 1024
        given.map { |selector| selector(selector) }
      end

      def selector(map)
        refuse("select") unless map.is_a?(Hash) && (map.keys - SELECTOR).empty? && KINDS.key?(map["kind"])
        owner, name = map.values_at("owner", "name")
        refuse("select") unless [owner, name].all? { |text| text.nil? || (text.is_a?(String) && text.bytesize.between?(1, 1024)) }
        refuse("select") if owner&.include?("\0")
        id = name ? Native.id_of(name.to_sym) : 0
        owner = owner.to_s.b
        @programs << program(map["expressions"])
        wants = (@programs.last || []).map(&:wants).inject(0, :|)
        [KINDS[map["kind"]], wants, owner.bytesize, id].pack("S2LQ") << owner << ("\0" * (-owner.bytesize % 8))
      end

      # nil for a selector without expressions.
      def program(given)
        return if given.nil? || given == []

        refuse("select") unless given.is_a?(Array) && given.size <= Expressions::MOST
        raise Refusal.new("argument", "expressions are for the modes ring and slow") unless WITH_VALUES.include?(@mode)

        given.map do |text|
          refuse("select") unless text.is_a?(String) && text.bytesize.between?(1, Expressions::MOST_BYTES)
          Expressions::Expression.new(text)
        end
      end

      # What of this stays when it is disarmed, in words.
      def overhead
        said = []
        said << "compiled code is thrown away (#{Facts.jit})" if Facts.jit && (flags & 3).positive?
        said << "calls of C methods stay slower" if boolean("c_calls", false)
        said
      end
    end

    # What is true of this process and its machine.
    module Facts
      module_function

      def jit
        return "yjit" if enabled?(:YJIT)
        return "zjit" if enabled?(:ZJIT)
        return "rjit" if enabled?(:RJIT)

        "mjit" if enabled?(:MJIT)
      end

      def enabled?(name)
        return false unless RubyVM.const_defined?(name, false)

        jit = RubyVM.const_get(name, false)
        jit.respond_to?(:enabled?) && jit.enabled?
      end

      def ractors
        defined?(::Ractor) ? ::Ractor.count : 1
      end

      def arch
        RbConfig::CONFIG["host_cpu"]
      end

      def version
        defined?(::Tracepoint::VERSION) ? ::Tracepoint::VERSION : nil
      end
    end

    # The agent's C part, or why there is none.
    module Native
      class << self
        attr_reader :reason
      end
      @reason =
        if RUBY_ENGINE != "ruby" then "the hook is for CRuby, this is #{RUBY_ENGINE}"
        elsif !RbConfig::CONFIG["host_os"].include?("linux") then "the hook is for Linux"
        end

      # What attach makes begins so; it goes when the tracer does.
      PUT_THERE = File.basename(__dir__).start_with?(".rbtrace-")

      def self.load
        require place
      rescue LoadError, SystemCallError => e
        raise if PUT_THERE && !File.exist?(__dir__)

        @reason = "agent_hook.so was not built or does not load: #{e.message}"
      end

      # Beside this file (attach, the Python package), in the checkout that this
      # file is in, or as the gem built it.
      def self.place
        beside = File.join(__dir__, "agent_hook.so")
        return beside if File.exist?(beside)
        # Looking through all gems takes a program with busy threads a minute.
        raise LoadError, "it was not put there" if PUT_THERE

        checkout = File.expand_path("../../ruby/lib/tracepoint/native/agent-#{RbConfig::CONFIG["arch"]}/agent_hook.so", __dir__)
        File.exist?(checkout) ? checkout : "tracepoint/agent_hook"
      end
      load unless @reason
    end

    # Values at the entry of a method: docs/agent.md, "Values of expressions". The
    # hook has them worked out in the program's own thread, in the middle of a call.
    module Expressions
      # Ends what takes too long; of the program nobody else ever sees it.
      class Stop < Exception; end # rubocop:disable Lint/InheritException -- a StandardError would be rescued

      MOST = 16
      MOST_BYTES = 1024
      ROOM = 1000
      ELLIPSIS = "\u2026"
      LEFT = "(left by throw, break or return)"
      TICK = 0.02
      # What others send to the thread waits until it is over; but not ours.
      NEVER = { Object => :never }.freeze
      IMMEDIATE = { Stop => :immediate }.freeze
      METHODS = %i[raise stop?].map { |name| Thread.instance_method(name) }.freeze

      # Where a call is evaluated. place: of its definition, of a C method's its caller's
      Frame = Struct.new(:binding, :receiver, :place)

      # One of them, and the way to its value that costs least.
      class Expression
        FILE = "(rbtrace)"
        SELF = 1
        BINDING = 2
        PLACE = 4
        IVAR_GET = Kernel.instance_method(:instance_variable_get)
        # A binding of an object, whatever it is, with Ruby's top level around it.
        BINDER = TOPLEVEL_BINDING.eval("::Module.new { def rbtrace_binding; ::Kernel.binding; end }", __FILE__, __LINE__)
                                 .instance_method(:rbtrace_binding)
        KINDS = { /\Aself\z/ => :itself, /\A__source__\z/ => :place, /\A@[A-Za-z_]\w*\z/ => :variable,
                  /\Aself\.[a-z_]\w*[?!]?\z/ => :attribute, /\A[a-z_]\w*\z/ => :local }.freeze

        # @raise [Refusal] if it is no Ruby
        def initialize(text)
          @text = text.strip
          @kind = KINDS.find { |form, _| form.match?(@text) }&.last || :code
          @name = @text.delete_prefix("self.").to_sym if %i[variable attribute local].include?(@kind)
          check unless @kind == :place
        end

        def wants
          case @kind
          when :place then SELF | PLACE
          when :local, :code then SELF | BINDING
          else SELF
          end
        end

        def value(frame)
          case @kind
          when :itself then frame.receiver
          when :place then frame.place
          when :variable then IVAR_GET.bind_call(frame.receiver, @name)
          when :attribute then frame.receiver.__send__(@name)
          else evaluated(frame)
          end
        end

        private

        def evaluated(frame)
          scope = frame.binding ||= BINDER.bind_call(frame.receiver)
          return scope.local_variable_get(@name) if @kind == :local && scope.local_variable_defined?(@name)

          scope.eval(@text, FILE, 1)
        end

        # Compiled and thrown away: nothing of it runs, nor is the program warned.
        def check
          verbose = $VERBOSE
          $VERBOSE = nil
          RubyVM::InstructionSequence.compile(@text, FILE, FILE, 1)
        rescue SyntaxError => e
          raise Refusal.new("argument", "the expression #{Values.text(@text).inspect} is no Ruby: #{reason(e)}")
        ensure
          $VERBOSE = verbose
        end

        def reason(error)
          lines = Values.text(error.message).lines.map { |line| line.sub(/\A\(rbtrace\):\d+: /, "").strip }
          (lines.find { |line| line.sub!(/\A\|\s*\^[\s^~]*/, "") } || lines.first.to_s).delete_prefix("syntax error, ")
        end
      end

      class << self
        # programs: by selector its expressions, or nil
        def use(programs, limit_ms)
          @programs = programs
          @limit_ms = limit_ms
        end

        # Ends with what is armed and the last evaluation; another arming has another.
        #
        # @raise [ThreadError] if there can be no thread
        def watch
          mine = @watcher = Object.new
          thread = Thread.new do
            Native.own(true)
            Kernel.sleep(TICK) while @watcher.equal?(mine) && Native.watch
          ensure
            Native.own(false)
          end
          thread.thread_variable_set(:rbtrace_agent, true)
          thread.name = "rbtrace agent"
          thread.report_on_exception = false
          apart(thread)
        end

        # What the records are to say, as bytes.
        def of(program, binding, receiver, path, line)
          Thread.handle_interrupt(NEVER) do
            frame = Frame.new(binding, receiver, path && "#{path}:#{line}")
            packed(program, Thread.handle_interrupt(IMMEDIATE) { texts(@programs[program], frame) })
          end
        end

        # What is to end an evaluation comes here instead.
        def flush
          Thread.handle_interrupt(NEVER) { Thread.handle_interrupt(IMMEDIATE) { nil } }
        end

        private

        # The agent's end is not its own.
        def apart(thread)
          ThreadGroup::Default.add(thread)
        rescue ThreadError # the program has closed that group
          nil
        end

        def packed(program, texts)
          shortened(texts).inject([program, 0].pack("S<C")) { |bytes, text| bytes << [text.bytesize].pack("S<") << text.b }
        end

        def texts(expressions, frame)
          found = []
          expressions.each { |expression| found << text(expression, frame) }
          found
        rescue Stop
          found << "(took longer than #{@limit_ms} ms)" until found.size == expressions.size
          found
        end

        # A throw, a return and a break would go on into the program.
        def text(expression, frame)
          found = text_or_error(expression, frame)
        rescue Stop, SignalException => e # what a signal asked for is the program's
          found = e
          raise
        ensure
          return LEFT unless found # rubocop:disable Lint/EnsureReturn
        end

        def text_or_error(expression, frame)
          printable(expression.value(frame).inspect)
        rescue Stop, SignalException
          raise
        rescue Exception => e # rubocop:disable Lint/RescueException -- nothing of it is the program's
          failure(e)
        end

        def failure(error)
          name = Names.module_text(Names::OBJECT_CLASS.bind_call(error))
          "(#{name}: #{printable(error.message).lines.first.to_s.strip})"
        rescue Stop, SignalException
          raise
        rescue Exception # rubocop:disable Lint/RescueException -- of its message
          "(#{name})"
        end

        # Whatever inspect gave, as a String of Ruby's own.
        def printable(text)
          Values.text("#{text}".byteslice(0, 4 * ROOM))
        end

        # Together they fit; long ones give way, and as much as needs be.
        def shortened(texts)
          left = ROOM
          share = texts.map(&:bytesize).sort.each_with_index do |size, i|
            fair = left / (texts.size - i)
            break fair if size > fair

            left -= size
          end
          share.is_a?(Integer) ? texts.map { |text| cut(text, share) } : texts
        end

        def cut(text, bytes)
          return text if text.bytesize <= bytes

          text.byteslice(0, bytes - ELLIPSIS.bytesize).scrub("") << ELLIPSIS
        end
      end

      Native.use(self, Stop, *METHODS) unless Native.reason
    end

    # The hook's clock.
    module Clock
      # Trusted where the processor says that it ticks on, and the kernel (or the
      # hypervisor, through its page) uses it.
      def self.kind
        return 2 if Facts.arch == "aarch64"
        return 0 unless Facts.arch == "x86_64"

        flags = File.foreach("/proc/cpuinfo").find { |line| line.start_with?("flags") }.to_s.split
        source = File.read("/sys/devices/system/clocksource/clocksource0/current_clocksource").strip
        trusted = %w[tsc kvm-clock hyperv_clocksource_tsc_page xen].include?(source)
        trusted && (%w[constant_tsc nonstop_tsc] - flags).empty? ? 1 : 0
      rescue SystemCallError
        0
      end

      KIND = kind
      NAMES = %w[monotonic tsc cntvct].freeze
      START = Native.reason ? [0, 0].freeze : Native.clock(KIND).freeze

      # A pair of ticks and ns, some time at least after START.
      def self.now(at_least_ns = 0)
        ticks, ns = Native.clock(KIND)
        return [ticks, ns] if ns - START[1] >= at_least_ns

        sleep((at_least_ns - (ns - START[1])) / 1e9)
        now(at_least_ns)
      end

      def self.pair
        %i[ticks ns].zip(Native.clock(KIND)).to_h
      end

      def self.mult(ticks, nanoseconds)
        return 1 << 32 if KIND.zero?

        ((nanoseconds - START[1]) << 32) / (ticks - START[0])
      end
    end

    # $stdout and $stderr for the time that something is evaluated: of that
    # thread's writing a pipe, of everybody else's what it was. It answers as that
    # does whatever it is asked, so that a dup is one of the file.
    class Redirect < BasicObject
      LOCK = ::Mutex.new
      @users = {}
      @pairs = nil

      class << self
        # For the thread that calls it.
        def claim(out, err)
          ::Thread.current.thread_variable_set(:rbtrace_stdout, out)
          ::Thread.current.thread_variable_set(:rbtrace_stderr, err)
        end

        # Who is killed on the way in is no user, or is one for no longer than that.
        def around(out, err)
          claim(out, err)
          mine = ::Object.new
          LOCK.synchronize do
            @users[mine] = true
            install if @users.size == 1
          end
          yield
        ensure
          LOCK.synchronize { remove if @users.delete(mine) && @users.empty? }
        end

        # In a child, whose threads have no use for it.
        def forget
          remove_const(:LOCK)
          const_set(:LOCK, ::Mutex.new)
          @users = {}
          remove
        end

        private

        def install
          @pairs = [[$stdout, new($stdout, :rbtrace_stdout)], [$stderr, new($stderr, :rbtrace_stderr)]]
          $stdout, $stderr = @pairs.map(&:last)
        end

        # The program may have set one of them meanwhile: then that stays.
        def remove
          (out, our_out), (err, our_err) = @pairs
          $stdout = out if our_out.equal?($stdout)
          $stderr = err if our_err.equal?($stderr)
          @pairs = nil
        end
      end

      def initialize(original, key)
        @original = original
        @key = key
      end

      def write(*arguments)
        target.write(*arguments)
      end

      def ==(other)
        equal?(other) || target == other
      end

      def respond_to?(name, private_too = false)
        target.respond_to?(name, private_too)
      end

      def respond_to_missing?(name, private_too)
        target.respond_to?(name, private_too)
      end

      def method_missing(name, *arguments, &block)
        target.public_send(name, *arguments, &block)
      end
      ruby2_keywords(:method_missing) if respond_to?(:ruby2_keywords, true)

      private

      def target
        ::Thread.current.thread_variable_get(@key) || @original
      end
    end

    # Something that runs beside the connection, and whose pipes are passed on:
    # waits for it, for the peer to cancel or to go, and for the time limit.
    class Pump
      SLICE = 0.1
      SHORT = 0.001
      CHUNK = 65_536

      # pipes: by channel the end to read
      def initialize(wire, request, pipes, limit)
        @wire = wire
        @request = request
        @pipes = pipes.invert
        @deadline = now + limit
        @bytes = 0
      end

      attr_reader :bytes

      # Until the block says that it is done, and what it wrote was passed on.
      def run
        until yield
          # With its pipes it ends as a rule: then it is done in a moment.
          slice = @pipes.empty? ? SHORT : SLICE
          readable, = IO.select([@wire.socket, *@pipes.keys], nil, nil, (@deadline - now).clamp(0, slice))
          (readable || []).each { |io| io == @wire.socket ? heed : pass_on(io) }
          late if now > @deadline
        end
        @pipes.keys.each { |io| nil while pass_on(io) }
      end

      private

      def now
        Process.clock_gettime(Process::CLOCK_MONOTONIC)
      end

      def late
        raise Refusal.new("time", "the time limit passed")
      end

      def heed
        frame = @wire.read
        raise Broken, "a request is under way" unless frame.type == Wire::CANCEL

        raise Refusal.new("cancelled", "cancelled") if frame.request == @request
      end

      def pass_on(pipe)
        bytes = pipe.read_nonblock(CHUNK, exception: false)
        return false if bytes == :wait_readable
        return @pipes.delete(pipe) && false if bytes.nil?

        @bytes += bytes.bytesize
        @wire.data(@request, @pipes[pipe], bytes, @deadline) or late
        true
      end
    end

    # eval: a thread of its own at top level.
    class Evaluation
      KILL_SECONDS = 1
      FILE = "(rbtrace)"

      # redirect: are $stdout and $stderr its pipes?
      def initialize(code, file, line, binding, redirect)
        @code = code
        @file = file
        @line = line
        @binding = binding
        @redirect = redirect
      end

      def run(wire, request, limit)
        out, out_end = IO.pipe
        err, err_end = IO.pipe
        @thread = thread = start(out_end, err_end)
        Pump.new(wire, request, { 1 => out, 2 => err }, limit).run { !thread.alive? }
        thread.value
      rescue Broken
        raise
      rescue Refusal => e
        raise e unless thread && !dead?(thread)

        raise Refusal.new(e.code, "#{e.message}; it does not end, and runs on")
      ensure
        thread&.kill
        [out, out_end, err, err_end].compact.each(&:close)
      end

      # Code that listens is told that the process ends; whether it is such.
      def tell_end
        @thread&.thread_variable_get(:rbtrace_end)&.push(nil)
      end

      private

      def dead?(thread)
        thread.kill
        thread.join(KILL_SECONDS)
      end

      def start(out, err)
        thread = Thread.new do
          apart
          [out, err].each { |io| io.sync = true }
          Redirect.claim(out, err)
          @redirect ? Redirect.around(out, err) { evaluate } : evaluate
        rescue Exception => e # rubocop:disable Lint/RescueException -- SystemExit would end the program
          failure(e)
        ensure
          [out, err].each(&:close) # which wakes who waits
        end
        thread.report_on_exception = false
        thread
      end

      # Threads that the code starts are the program's; only this one is the agent's.
      def apart
        Thread.current.thread_variable_set(:rbtrace_agent, true)
        ThreadGroup::Default.add(Thread.current)
      rescue ThreadError # the program has closed that group
        nil
      end

      # The result, or its failure, as a map.
      def evaluate
        started = Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)
        value = @binding.eval(@code, @file, @line)
        text = value.inspect
        { value: text.to_s, class: Names.module_text(Names::OBJECT_CLASS.bind_call(value)),
          ns: Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond) - started }
      rescue NoMethodError => e
        # A BasicObject has neither class nor inspect.
        raise unless e.name == :inspect && BasicObject === e.receiver

        # Tools that quote the failing line would quote ours.
        failure(e, e.message.to_s[/.*/])
      end

      def failure(error, text = error.message.to_s)
        trace = (error.backtrace || []).take_while { |line| !line.start_with?("#{__FILE__}:") }
        Refusal.new("raised", text, class: error.class.to_s, backtrace: trace)
      end
    end

    # A child that writes something to a pipe. It is the process, stopped at one
    # moment, and has nothing of the agent's but this.
    class Dump
      def initialize(method, collect)
        @method = method
        @collect = collect
      end

      def run(wire, request, limit)
        pipe, pipe_end = IO.pipe(binmode: true)
        why, why_end = IO.pipe
        pid = Agent.fork_apart { write(pipe_end, why_end) }
        [pipe_end, why_end].each(&:close)
        pump = Pump.new(wire, request, { 3 => pipe }, limit)
        pump.run { finished?(pid) }
        raise Refusal.new("system", "the dump failed: #{reason(why)}") unless @status.nil? || @status.success?

        { bytes: pump.bytes }
      ensure # also where the agent is stopped, and this thread killed
        kill(pid)
        [pipe, pipe_end, why, why_end].compact.each(&:close)
      end

      private

      # In the child. Ruby 3.4 raises where a pipe that does not block is full;
      # the numbers are F_SETFL and F_GETFL, for which Ruby has a library.
      def write(pipe, why)
        pipe.fcntl(4, pipe.fcntl(3) & ~File::NONBLOCK)
        require "objspace"
        GC.start if @collect
        ObjectSpace.public_send(@method, output: pipe)
        pipe.close
      rescue Exception => e # rubocop:disable Lint/RescueException -- it is the parent's to tell
        why.write("#{e.class}: #{e.message}".byteslice(0, 1000))
        raise
      end

      def reason(why)
        said = why.read_nonblock(1000, exception: false)
        said.is_a?(String) ? said : @status.inspect
      end

      # The program may wait for any child, and so for this one.
      def finished?(pid)
        return true if @finished

        found, @status = Process.wait2(pid, Process::WNOHANG)
        @finished = !found.nil?
      rescue Errno::ECHILD
        @finished = true
      end

      def kill(pid)
        return if pid.nil? || finished?(pid)

        Process.kill(:KILL, pid)
        Process.wait(pid)
      rescue SystemCallError
        nil
      end
    end

    # The commands, each a method that returns the reply.
    class Commands
      ARGUMENTS = {
        "hello" => %w[magic versions], "arm" => Arming::ARGUMENTS, "disarm" => [], "status" => [], "clock" => [],
        "names" => %w[from count], "threads" => [], "eval" => %w[code limit_ms file line keep redirect], "backtraces" => [],
        "memory" => [], "heapdump" => %w[gc limit_ms], "shapesdump" => %w[gc limit_ms], "fork" => [], "stop" => []
      }.freeze
      DUMP_MS = 600_000
      EVAL_MS = 5_000
      MOST_MS = 3_600_000
      MOST_NAMES = 4096

      def initialize(connection)
        @connection = connection
        @wire = connection.wire
      end

      def call(request, map)
        command = map.delete("command")
        known = ARGUMENTS[command] or raise Refusal.new("command", "no such command")
        unknown = map.keys - known
        raise Refusal.new("argument", "unknown: #{unknown.first(3).join(", ")}") unless unknown.empty?

        @request = request
        @map = map
        __send__(:"command_#{command}")
      end

      private

      def argument(name, type, default)
        value = @map.fetch(name, default)
        raise Refusal.new("argument", "#{name} is missing or not #{type}") unless type === value

        value
      end

      def flag(name, default = false)
        argument(name, ->(value) { [true, false].include?(value) }, default)
      end

      def seconds(default)
        argument("limit_ms", 1..MOST_MS, default) / 1000.0
      end

      def native!
        raise Refusal.new("unsupported", Native.reason) if Native.reason
      end

      def armed!
        raise Refusal.new("state", "nothing is armed") unless @connection.armed?
      end

      def command_hello
        raise Broken, "not the magic" unless @map["magic"] == MAGIC
        raise Broken.new("versions: #{PROTOCOL}", "version") unless @map["versions"].is_a?(Array) && @map["versions"].include?(PROTOCOL)

        { version: PROTOCOL, pid: Process.pid, uid: Process.euid, ruby: RUBY_VERSION, description: RUBY_DESCRIPTION,
          program: $PROGRAM_NAME, gem: Facts.version, arch: Facts.arch, commands: ARGUMENTS.keys,
          native: Native.reason.nil?, native_reason: Native.reason, clock: Clock::NAMES[Clock::KIND], jit: Facts.jit,
          ractors: Facts.ractors, armed_by: Agent.armed_by&.peer_pid }
      end

      def command_arm
        native!
        arming = Arming.new(@map)
        @connection.arm { arming.call }
      end

      def command_disarm
        armed!
        @connection.disarm
      end

      def command_status
        armed!
        Arming.status
      end

      def command_clock
        native!
        Clock.pair
      end

      def command_names
        armed!
        from = argument("from", 0..(1 << 20), 0)
        { methods: Names.of(from, argument("count", 0..MOST_NAMES, MOST_NAMES)) }
      end

      def command_threads
        { threads: Thread.list.map { |thread| describe(thread) } }
      end

      def describe(thread)
        { native_id: thread.respond_to?(:native_thread_id) ? thread.native_thread_id : nil, name: thread.name,
          status: thread.status || nil, main: thread == Thread.main, agent: Agent.own?(thread) }
      end

      def command_eval
        file = argument("file", String, Evaluation::FILE)
        line = argument("line", 0..(1 << 30), 1)
        binding = flag("keep") ? @connection.binding_kept : TOPLEVEL_BINDING.dup
        evaluation = Evaluation.new(argument("code", String, nil), file, line, binding, flag("redirect", true))
        @connection.evaluation = evaluation
        found = evaluation.run(@wire, @request, seconds(EVAL_MS))
        raise found if found.is_a?(Refusal)

        found || raise(Refusal.new("raised", "the thread was killed", class: nil, backtrace: []))
      end

      def command_backtraces
        { threads: Thread.list.map { |thread| describe(thread).merge(backtrace: thread.backtrace || []) } }
      end

      def command_memory
        { gc: GC.stat, objects: ObjectSpace.count_objects }.merge(resident)
      end

      def resident
        rollup = File.read("/proc/self/smaps_rollup").scan(/^(Rss|Pss|Swap):\s+(\d+) kB/).to_h
        { rss: rollup["Rss"].to_i * 1024, pss: rollup["Pss"].to_i * 1024, swap: rollup["Swap"].to_i * 1024 }
      rescue SystemCallError
        { rss: File.read("/proc/self/statm").split[1].to_i * 4096, pss: nil, swap: nil }
      end

      def command_heapdump
        Dump.new(:dump_all, flag("gc")).run(@wire, @request, seconds(DUMP_MS))
      end

      def command_shapesdump
        raise Refusal.new("unsupported", "Ruby #{RUBY_VERSION} has no dump of shapes, 3.3 has") if RUBY_VERSION < "3.3"

        Dump.new(:dump_shapes, flag("gc")).run(@wire, @request, seconds(DUMP_MS))
      end

      def command_fork
        pid = Agent.fork_apart { Process.kill(:STOP, Process.pid) }
        Process.detach(pid)
        @connection.copy = pid
        { pid: pid }
      end

      def command_stop
        Thread.new { Agent.stop }
        {}
      end
    end

    # One tracer.
    class Connection
      HELLO_SECONDS = 5

      attr_reader :wire, :peer_pid

      # What runs for it, until that is answered.
      attr_accessor :evaluation

      # The pid of a stopped copy: nobody's, until it was read.
      attr_writer :copy

      def initialize(socket, peer_pid)
        @wire = Wire.new(socket)
        @peer_pid = peer_pid
        @commands = Commands.new(self)
      end

      def serve
        greet
        loop { answer(next_request) }
      rescue Broken => e
        refuse(0, e)
      rescue Gone => e
        # Unlike at the end of a stream there was something that it did not read.
        end_copy if e.cause.is_a?(SystemCallError)
      end

      def close
        Agent.disarm(self)
        @wire.socket.close
      rescue IOError
        nil
      end

      def refuse(request, refusal)
        @wire.reply(request, refusal.to_reply, Wire::ERROR)
      rescue Gone
        nil
      end

      def armed?
        Agent.armed_by.equal?(self)
      end

      def arm
        reply, files = Agent.arm(self) { yield }
        @wire.reply_with(@request, reply, files)
        nil
      ensure
        files&.each(&:close)
      end

      def disarm
        Agent.disarm(self)
      end

      def binding_kept
        @binding_kept ||= TOPLEVEL_BINDING.dup
      end

      private

      def greet
        deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + HELLO_SECONDS
        frame = @wire.read(deadline)
        raise Broken, "hello comes first" unless frame.type == Wire::REQUEST && frame.flags.zero?

        map = Values.decode_map(frame.payload)
        raise Broken, "hello comes first" unless map["command"] == "hello"

        answer([frame.request, map], Broken)
      end

      def end_copy
        Process.kill(:KILL, @copy) if @copy
      rescue SystemCallError
        nil
      end

      # A request, with the DATA frames before it if it came in such.
      def next_request
        long = +""
        loop do
          frame = @wire.read
          next if frame.type == Wire::CANCEL
          raise Broken, "0 is no request" if frame.request.zero?

          if frame.type == Wire::DATA
            raise Broken, "request too long" if (long << frame.payload).bytesize > Wire::MAX_REQUEST
          else
            return [frame.request, Values.decode_map(frame.flags == 1 ? long : frame.payload)]
          end
        end
      end

      def answer((request, map), fatal = nil)
        raise Broken, "0 is no request" if request.zero?

        @request = request
        @copy = nil
        reply = @commands.call(request, map)
        @wire.reply(request, reply) if reply
      rescue Gone, Broken
        raise
      rescue Refusal => e
        refuse(request, e)
        raise Gone if fatal
      rescue StandardError, NoMemoryError, ScriptError, SystemStackError => e
        refuse(request, Refusal.new("system", "#{e.class}: #{e.message}"))
      ensure
        @evaluation = nil
      end
    end

    # The socket, and who is connected.
    class Server
      MAX_CONNECTIONS = 8
      NOBODY = 65_534
      ALL_USERS = (1 << 32) - 1
      STOP_SECONDS = 1
      # Of the socket; or why there is none.
      attr_reader :path, :reason

      def initialize
        @pid = Process.pid
        @thread = nil
        @connections = []
        @group = ThreadGroup.new
        @listener, @path = Place.bind
        @thread = start { accept } if @listener
        @reason = "no socket could be made in #{Place.directories.join(" or ")}" unless @listener
      rescue ThreadError => e
        close
        @listener = @path = nil
        @reason = e.message
      end

      def own?(thread)
        @group.list.include?(thread) || thread.thread_variable_get(:rbtrace_agent) == true
      end

      def last_words(map_of, deadline)
        @connections.each { |connection| connection.wire.last_words(map_of.call, deadline) if connection.armed? }
      end

      # Code that runs for as long as somebody listens may say what it has left.
      def end_evaluations(deadline)
        told = @connections.select { |connection| connection.evaluation&.tell_end }
        sleep 0.005 until told.none?(&:evaluation) || Process.clock_gettime(Process::CLOCK_MONOTONIC) > deadline
      end

      # Nobody is let in from here on.
      def shut
        @thread&.kill&.join(STOP_SECONDS)
      end

      # As the process ends, or the agent does.
      def close
        return unless @pid == Process.pid

        File.unlink(@path) if @path && File.socket?(@path)
        @thread&.kill
        @listener&.close
        (@group.list - [Thread.current]).each(&:kill)
      rescue SystemCallError, IOError
        nil
      end

      # In a child, which has copies of it all.
      def abandon
        [@listener, *@connections.map { |connection| connection.wire.socket }].compact.each do |socket|
          socket.close
        rescue SystemCallError, IOError
          next
        end
      end

      private

      # Threads that begin in one of the group are of it too.
      def start
        thread = Thread.new do
          Native.own(true) unless Native.reason
          yield
        ensure
          Native.own(false) unless Native.reason
        end
        thread.name = "rbtrace agent"
        thread.report_on_exception = false
        @group.add(thread)
        thread
      end

      def accept
        loop do
          IO.select([@listener])
          # Who is let in has a thread that closes it, whenever all this ends.
          Thread.handle_interrupt(Object => :never) { admit(@listener.accept_nonblock(exception: false)) }
        rescue SystemCallError, ThreadError # no more descriptors, or threads
          sleep 0.1
        end
      rescue IOError # closed
        nil
      end

      def admit(socket)
        return if socket == :wait_readable # gone before it was there

        pid, uid, = socket.getsockopt(:SOCKET, :PEERCRED).unpack("iii")
        return socket.close unless uid.zero? || (uid == Process.euid && !(uid == NOBODY && strangers?))

        connection = Connection.new(socket, pid)
        if @connections.size >= MAX_CONNECTIONS
          connection.refuse(0, Refusal.new("busy", "#{MAX_CONNECTIONS} connections are open"))
          return socket.close
        end
        begin_serving(connection)
      end

      def begin_serving(connection)
        @connections << connection
        start { serve(connection) }
      rescue ThreadError => e
        @connections.delete(connection)
        connection.refuse(0, Refusal.new("system", e.message))
        connection.close
        raise
      end

      # Are there users whom our user namespace has no number for? It shows each as nobody.
      def strangers?
        File.readlines("/proc/self/uid_map").sum { |line| line.split.last.to_i } < ALL_USERS
      rescue SystemCallError
        true
      end

      # Begins with interrupts put off, as who lets in does.
      def serve(connection)
        Thread.handle_interrupt(Object => :immediate) { connection.serve }
      ensure
        connection.close
        @connections.delete(connection)
      end
    end

    EXIT_SECONDS = 1
    LOCK = Mutex.new
    @server = @armed_by = @pid = nil
    @undos = {}.compare_by_identity

    class << self
      # @return [Connection, nil]
      attr_reader :armed_by

      # @return [String, nil] of the socket, nil where there is none
      def path
        @server&.path
      end

      def start
        return if @server

        @pid = Process.pid
        @server = Server.new
        warn "tracepoint/agent: #{@server.reason}" unless path
      end

      # Take the agent out of service: its socket goes, what is armed is disarmed.
      def stop
        @server&.shut
        close
      end

      def own?(thread)
        @server ? @server.own?(thread) : false
      end

      def arm(connection)
        LOCK.synchronize do
          raise Refusal.new("state", "armed already") if armed_by.equal?(connection)
          raise Refusal.new("busy", "armed by process #{armed_by.peer_pid}", pid: armed_by.peer_pid) if armed_by

          arm_whole(connection) { yield }
        end
      end

      # @return [Hash, nil] the status at the end; nil if it had armed nothing
      def disarm(connection)
        LOCK.synchronize do
          return nil unless connection && armed_by.equal?(connection)

          Native.stop
          status = Arming.status
          Native.release
          @armed_by = nil
          status
        end
      rescue ThreadError # in a signal's handler, where no Mutex can be had
        # What ends the connection comes here too, in the connection's thread.
        nil
      end

      # A child that runs the block and ends, and has no agent.
      def fork_apart
        Thread.current[:rbtrace_apart] = true
        pid = Process.fork do
          yield
          exit!(true)
        rescue Exception # rubocop:disable Lint/RescueException -- nothing of the program's may run
          exit!(false)
        end
        pid
      ensure
        Thread.current[:rbtrace_apart] = nil
      end

      # The block, and then what undoes what it did: also if its thread is killed, and
      # in a child that is forked meanwhile, which has not that thread.
      def undoing(undo)
        @undos[undo] = true
        yield
      ensure
        undo.call
        @undos.delete(undo)
      end

      # Is this a child of the process whose agent it has? That there are no more
      # threads, or that $stderr is closed, must not come out of the program's fork.
      def check_fork
        return if @pid == Process.pid || @pid.nil?

        had = @server
        leave_parent
        start if had && !Thread.current[:rbtrace_apart]
      rescue StandardError
        nil
      end

      # What the program's end leaves to do, before its threads are killed.
      def finish
        return unless @server && @pid == Process.pid

        deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + EXIT_SECONDS
        say_last_words(deadline) if armed_by
        @server.end_evaluations(deadline)
        close
      end

      private

      def close
        server = @server
        @server = nil
        server&.close
        disarm(armed_by) if armed_by
      end

      # In a child: what its parent's agent did is not done here.
      def leave_parent
        server = @server
        undos = [*@undos.keys, -> { Redirect.forget }]
        forget
        undos << -> { Native.forget } unless Native.reason
        undos << -> { server.abandon } if server
        undos.each do |undo|
          undo.call
        rescue StandardError
          next
        end
      end

      def forget
        @server = nil
        @armed_by = nil
        @undos = {}.compare_by_identity
        @pid = Process.pid
        # A thread that is not here may have held it.
        remove_const(:LOCK)
        const_set(:LOCK, Mutex.new)
      end

      # The connection's thread may be killed in the middle of it.
      def arm_whole(connection)
        answer = yield
        @armed_by = connection
        answer
      ensure
        Native.release unless @armed_by
      end

      def say_last_words(deadline)
        Native.stop
        words = -> { { event: "exit", status: Arming.status, methods: Names.of(0, Arming.status[:methods]) } }
        @server.last_words(words, deadline)
      end
    end

    # Forks that Ruby tells of.
    module Forks
      module Fork # 3.1 and later
        def _fork
          pid = super
          Agent.check_fork if pid.zero?
          pid
        end
      end

      module Daemon
        def daemon(*arguments)
          super.tap { Agent.check_fork }
        end
      end

      module Popen # before 3.1; later it calls _fork
        def popen(*arguments, &block)
          return super.tap { Agent.check_fork } unless block

          super(*arguments) do |io|
            Agent.check_fork
            yield io
          end
        end
        ruby2_keywords(:popen) if respond_to?(:ruby2_keywords, true)
      end

      module OldFork
        def fork
          return super.tap { Agent.check_fork } unless block_given?

          super do
            Agent.check_fork
            yield
          end
        end
      end

      def self.install
        Process.singleton_class.prepend(Daemon)
        return Process.singleton_class.prepend(Fork) if Process.respond_to?(:_fork)

        [Process.singleton_class, Kernel.singleton_class].each { |owner| owner.prepend(OldFork) }
        IO.singleton_class.prepend(Popen)
        replace_kernel_fork
      end

      # Prepending to Kernel would not reach classes that have it already.
      def self.replace_kernel_fork
        Kernel.module_eval do
          alias_method :fork_without_rbtrace, :fork
          define_method(:fork) { |&block| block ? Process.fork(&block) : Process.fork }
          private :fork, :fork_without_rbtrace
        end
      end
    end

    Forks.install
    at_exit { Agent.finish }
    start
  end
end
