# frozen_string_literal: true

module Tracepoint
  module Agent
    # Finds the methods that selectors name, by the rules of the hook (hook/methods.c):
    # methods defined in the class, and methods of classes that are called on it.
    #
    # The search runs no code of the program: no autoload, no const_missing, and no method
    # that overrides one of Module's.
    class Search
      # unbound: a method with instructions, which can be a TracePoint's target
      Found = Struct.new(:unbound, :owner, :name, :iseq) do
        # Return whether define_method made it: such methods may share instructions.
        def block?
          iseq.label.start_with?("block ")
        end
      end

      Selector = Struct.new(:owner, :kind, :name)

      NAME = Module.instance_method(:name)
      SINGLETON = Module.instance_method(:singleton_class?)
      SUPERCLASS = Class.instance_method(:superclass)
      AUTOLOAD = Module.instance_method(:autoload?)
      HAS_CONSTANT = Module.instance_method(:const_defined?)
      CONSTANT = Module.instance_method(:const_get)
      LISTS = %i[instance_methods private_instance_methods].map { |name| Module.instance_method(name) }.freeze
      HAS_METHOD = %i[method_defined? private_method_defined?].map { |name| Module.instance_method(name) }.freeze
      METHOD = Module.instance_method(:instance_method)
      OWNER = UnboundMethod.instance_method(:owner)
      ABOVE = UnboundMethod.instance_method(:super_method)
      ORIGINAL = UnboundMethod.instance_method(:original_name)
      ISEQ_OF = RubyVM::InstructionSequence.method(:of)
      ANCESTORS = Module.instance_method(:ancestors)
      CONSTANTS = Module.instance_method(:constants)
      # Ruby's own method, since 3.1. ActiveSupport before 7 replaces it with a method that
      # searches the heap, which takes minutes for all classes of an application.
      SUBCLASSES = (Class.instance_method(:subclasses) if Class.method_defined?(:subclasses))
                   &.then { |method| method unless method.source_location }
      EACH_OBJECT = ObjectSpace.method(:each_object)
      MOST_SLOTS = 150_000 # about 4 ms
      MOST_NEAR = 1000
      MARKS = { "instance" => "#", "singleton" => "." }.freeze

      # Selectors that match a method with instructions, and selectors that match a method
      # without (written in C, or made by attr_reader). Both are keys of hashes.
      attr_reader :matched, :without_code

      # slices: limits the time between two methods
      def initialize(selectors, slices)
        @selectors = selectors
        @slices = slices
        @matched = {}.compare_by_identity
        @without_code = {}.compare_by_identity
      end

      # Yield methods of selectors with a class, each once.
      def of_classes(&block)
        @selectors.select(&:owner).each do |selector|
          modules(selector).each { |found| methods(found, [selector], &block) }
        end
      end

      # Yield methods of selectors with only a method name, in any class.
      def of_names(&block)
        selectors = @selectors.reject(&:owner)
        return if selectors.empty?

        everything.each do |found|
          @slices.pass
          here = selectors.select { |selector| kind?(found, selector) && defined_in?(found, selector) }
          methods(found, here, &block) if here.any?
        end
      end

      # Return likely intended methods: other methods of the selector's class, or methods of
      # the same name in classes with a similar name.
      def near
        of_classes = @selectors.select(&:owner)
        most = MOST_NEAR / [of_classes.size, 1].max
        of_classes.flat_map { |each| (lookup(each.owner) ? beside(each) : elsewhere(each)).first(most) }.uniq
      rescue EncodingError # names in incompatible encodings
        []
      end

      private

      # `.` is often confused with `#`, so methods of the other kind follow.
      def beside(selector)
        kinds = selector.kind ? [selector.kind, *(MARKS.keys - [selector.kind])] : [nil]
        kinds.flat_map do |kind|
          modules(Selector.new(selector.owner, kind)).flat_map do |found|
            @slices.pass
            names(found).map { |name| "#{selector.owner}#{MARKS[kind]}#{name}" }
          end
        end
      end

      def elsewhere(selector)
        *outer, _name = selector.owner.split("::")
        scope = outer.empty? ? Object : lookup(outer.join("::"))
        list = scope ? constants(scope).filter_map { |found| NAME.bind_call(found) } : []
        list.filter_map do |owner|
          @slices.pass
          other = Selector.new(owner, selector.kind, selector.name)
          "#{owner}#{MARKS[other.kind]}#{other.name}" if modules(other).any? { |found| defined_in?(found, other) }
        end
      end

      # A walk over the whole heap cannot be interrupted, so the heap has to be small.
      def everything
        return reachable if GC.stat(:heap_available_slots) > MOST_SLOTS

        list = []
        EACH_OBJECT.call(Module) { |found| list << found }
        list
      end

      # Return modules that are reachable by constants or superclasses. This misses other
      # modules, and the singleton methods of other objects.
      def reachable
        seen = {}.compare_by_identity
        waiting = [BasicObject]
        while (found = waiting.pop)
          next if seen.key?(found)

          seen[found] = true
          waiting.concat(next_to(found))
          @slices.pass
        end
        seen.keys
      end

      def next_to(found)
        list = ANCESTORS.bind_call(found) + constants(found)
        list.concat(SUBCLASSES.bind_call(found)) if SUBCLASSES && Class === found
        singleton = SINGLETON.bind_call(found) ? nil : Native.singleton(found)
        singleton ? list << singleton : list
      end

      # Reading a deprecated constant would print a warning.
      def constants(found)
        return [] if SINGLETON.bind_call(found) || (Warning.respond_to?(:[]) && Warning[:deprecated])

        CONSTANTS.bind_call(found, false).filter_map { |name| constant(found, name) }
      end

      # Return nil if the constant is missing, not loaded yet, or not a module.
      def constant(scope, name)
        return if AUTOLOAD.bind_call(scope, name, false) || !HAS_CONSTANT.bind_call(scope, name, false)

        found = CONSTANT.bind_call(scope, name, false)
        found if Module === found
      end

      def kind?(found, selector)
        selector.kind.nil? || (selector.kind == "singleton") == SINGLETON.bind_call(found)
      end

      def defined_in?(found, selector)
        selector.name.nil? || HAS_METHOD.any? { |method| method.bind_call(found, selector.name, false) }
      end

      def modules(selector)
        found = lookup(selector.owner) or return []
        list = []
        list << found unless selector.kind == "singleton"
        list.concat(singletons(found)) unless selector.kind == "instance"
        list
      end

      # Return the modules that may define methods called on this one.
      def singletons(found)
        list = []
        while found
          list << Native.singleton(found)
          found = Class === found ? SUPERCLASS.bind_call(found) : nil
        end
        list.select { |each| each }
      end

      # Return the module with this name, if it is loaded and its constant holds it.
      def lookup(name)
        found = name.split("::").inject(Object) { |scope, part| constant(scope, part) or break }
        found if found && NAME.bind_call(found) == name
      rescue NameError # not a valid name
        nil
      end

      # Aliases are known by the name of the original method.
      def methods(found, selectors)
        names(found).each do |name|
          @slices.pass
          method = own(found, name) or next
          original = ORIGINAL.bind_call(method)
          here = selectors.select { |selector| selector.name.nil? || selector.name == original }
          next if here.empty?

          iseq = ISEQ_OF.call(method)
          here.each { |selector| (iseq ? @matched : @without_code)[selector] = true }
          yield(Found.new(method, found, name, iseq)) if iseq
        end
      end

      def names(found)
        LISTS.flat_map do |list|
          @slices.pass
          list.bind_call(found, false)
        end
      end

      # Return the module's own method; prepended modules come before it.
      def own(found, name)
        method = METHOD.bind_call(found, name)
        method = ABOVE.bind_call(method) until method.nil? || OWNER.bind_call(method).equal?(found)
        method
      rescue NameError # removed in the meantime
        nil
      end
    end
  end
end
