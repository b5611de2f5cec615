# frozen_string_literal: true

module Tracepoint
  module Agent
    # Values at the entry of a method: docs/agent/memory.md, "Values of expressions". The
    # hook has them worked out in the program's own thread, in the middle of a call.
    module Expressions
      # Raised to end an expression that takes too long; the program never sees it.
      class Stop < Exception; end # rubocop:disable Lint/InheritException -- a StandardError would be rescued

      MOST = 16
      MOST_BYTES = 1024
      ROOM = 1000
      ELLIPSIS = "\u2026"
      LEFT = "(left by throw, break or return)"
      TICK = 0.02
      # An exception that others raise in the thread waits until it is over; ours does
      # not, nor does a kill: a thread that an expression begins inherits this, and has to
      # end with the program.
      NEVER = { Exception => :never }.freeze
      IMMEDIATE = { Stop => :immediate }.freeze
      METHODS = %i[raise stop?].map { |name| Thread.instance_method(name) }.freeze
      EQUAL = BasicObject.instance_method(:equal?)

      # The place in which a call is evaluated. place: of its definition, of a C method's its caller's
      # own: how many frames the method has by then
      Frame = Struct.new(:binding, :receiver, :place, :own)

      # The callers: Ruby's caller and caller_locations without arguments, as the first line
      # of the method would have them. Asked from here they begin with frames of the agent,
      # so variables of the expression's own stand for them.
      module Callers
        METHODS = { caller: Kernel.instance_method(:caller),
                    caller_locations: Kernel.instance_method(:caller_locations) }.freeze
        METHOD = Kernel.instance_method(:method)
        OURS = "#{FOLDER}/"

        class << self
          def named(text)
            METHODS.keys.select { |name| text.match?(/(?<![\w@$.:])#{name}(?![\w?!(])/) }
          end

          # The scope, with these names in it: unless they are the program's there.
          def into(scope, names, frame)
            names = names.reject { |name| scope.local_variable_defined?(name) || own?(frame.receiver, name) }
            return scope if names.empty?

            scope = scope.dup
            names.each { |name| scope.local_variable_set(name, found(name, frame)) }
            scope
          end

          private

          def own?(receiver, name)
            !(Object === receiver) || METHOD.bind_call(receiver, name).owner != Kernel
          end

          def found(name, frame)
            METHODS[name].bind_call(self, 0).drop_while { |place| place.to_s.start_with?(OURS) }.drop(frame.own)
          end
        end
      end

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

        # @raise [Refusal] if it is not valid Ruby
        def initialize(text)
          @text = text.strip
          @kind = KINDS.find { |form, _| form.match?(@text) }&.last || :code
          @name = @text.delete_prefix("self.").to_sym if %i[variable attribute local].include?(@kind)
          @callers = Callers.named(@text)
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

          Callers.into(scope, @callers, frame).eval(@text, FILE, 1)
        end

        # Compiled and thrown away: nothing of it runs, nor is the program warned.
        def check
          verbose = $VERBOSE
          $VERBOSE = nil
          RubyVM::InstructionSequence.compile(@text, FILE, FILE, 1)
        rescue SyntaxError => e
          raise Refusal.new("argument", "the expression #{Values.text(@text).inspect} is not valid Ruby: #{reason(e)}")
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
          Watcher.new { |watcher| watcher.pause(TICK) while @watcher.equal?(mine) && Native.watch }
        end

        # Returns the contents of the records as bytes.
        def of(program, binding, receiver, path, line)
          Thread.handle_interrupt(NEVER) do
            frame = Frame.new(binding, receiver, path && "#{path}:#{line}", binding ? 1 : 0)
            found = Thread.handle_interrupt(immediate) { texts(@programs[program], frame) }
            nil while Thread.pending_interrupt? && drops_timeout?
            packed(program, found)
          end
        end

        # Requests to end an evaluation come here instead.
        def flush
          Thread.handle_interrupt(NEVER) { Thread.handle_interrupt(IMMEDIATE) { nil } }
        end

        private

        # Since timeout 0.4 only the Timeout whose time is over takes that for its own, so
        # it may come at once.
        def immediate
          defined?(::Timeout::ExitException) ? { Stop => :immediate, ::Timeout::ExitException => :immediate } : IMMEDIATE
        end

        # Before, it is a throw if its Timeout goes on, which is the program's; else it is
        # an exception, of one that an expression has left.
        def drops_timeout?
          return false if defined?(::Timeout::ExitException) || !defined?(::Timeout::Error)

          Thread.handle_interrupt(::Timeout::Error => :immediate) { false }
        rescue ::Timeout::Error => e
          raise unless e.instance_of?(::Timeout::Error) # others may be the program's

          true
        end

        # An exception that is the program's although it comes while an expression runs.
        def foreign
          defined?(::Timeout::ExitException) ? [SignalException, ::Timeout::ExitException] : [SignalException]
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

        # A throw, a return and a break would go on into the program. Exceptions do, and
        # are not taken for one of those even where they leave no stack to ask for more.
        def text(expression, frame)
          before = $!
          found = text_or_error(expression, frame)
        ensure
          is_killed = Thread.current.status == "aborting"
          return LEFT unless found || is_killed || !EQUAL.bind_call(before, $!) # rubocop:disable Lint/EnsureReturn
        end

        def text_or_error(expression, frame)
          printable(expression.value(frame).inspect)
        rescue Stop, *foreign # a signal's exception is the program's
          raise
        rescue Exception => e # rubocop:disable Lint/RescueException -- nothing of it is the program's
          failure(e)
        end

        def failure(error)
          name = Names.module_text(Names::OBJECT_CLASS.bind_call(error))
          "(#{name}: #{printable(error.message).lines.first.to_s.strip})"
        rescue Stop, *foreign
          raise
        rescue Exception # rubocop:disable Lint/RescueException -- of its message
          name ? "(#{name})" : raise # there is no stack for so little
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
  end
end
